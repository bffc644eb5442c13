// Package tiny trains policy/tiny in this process: a step of reinforcement over a batch, and checkpoints of model and optimizer.
package tiny

import (
	"context"
	"errors"
	"fmt"

	model "github.com/rlfleet/rlfleet/policy/tiny"
	"github.com/rlfleet/rlfleet/trainer"
	"github.com/rlfleet/rlfleet/trainer/objective"
)

// The kinds of failure.
var (
	ErrConfig    = errors.New("training settings cannot work")
	ErrSample    = errors.New("sample cannot be trained on")
	ErrNotFinite = errors.New("training diverged")
	ErrUnloaded  = errors.New("no checkpoint is loaded")
)

// Config holds the settings of a run's steps.
type Config struct {
	Epochs      int // passes over a batch
	Minibatches int // updates in a pass
	LR          float64
	GradClip    float64 // most Euclidean norm of a gradient; 0 is off
	Optimizer   model.AdamWConfig
	Loss        objective.PPO
	Entropy     float64 // coefficient of the bonus, per token and nat
	Aggregate   objective.Aggregate
	Length      float64 // constant of seq-mean-token-sum-norm, tokens
}

// DefaultConfig returns the settings that were seen to learn: one update a
// batch, 3e-3, AdamW 0.9/0.95, clip 0.2 with dual 3, entropy 0.005, token mean.
func DefaultConfig() Config {
	return Config{
		Epochs: 1, Minibatches: 1, LR: 3e-3, GradClip: 1, Optimizer: model.DefaultAdamW(),
		Loss: objective.DefaultPPO(), Entropy: 0.005, Aggregate: objective.TokenMean,
	}
}

// Validate returns ErrConfig for settings that cannot work.
func (c Config) Validate() error {
	if err := c.Loss.Validate(); err != nil {
		return fmt.Errorf("trainer/tiny: %w: %w", ErrConfig, err)
	}
	if _, err := c.Aggregate.Weights([]objective.Row{{Tokens: 1}}, objective.Totals{Tokens: 1, Rollouts: 1}, c.Length); err != nil {
		return fmt.Errorf("trainer/tiny: %w: %w", ErrConfig, err)
	}
	o := c.Optimizer
	if c.Epochs < 1 || c.Minibatches < 1 || !(c.LR >= 0) || !(c.GradClip >= 0) || !(c.Entropy >= 0) ||
		!(o.Beta1 >= 0 && o.Beta1 < 1) || !(o.Beta2 >= 0 && o.Beta2 < 1) || !(o.Eps > 0) || !(o.WeightDecay >= 0) {
		return fmt.Errorf("trainer/tiny: %+v: %w", c, ErrConfig)
	}
	return nil
}

// Backend implements trainer.Backend over one model in this process.
type Backend struct {
	cfg Config
	m   *model.Model
	opt *model.AdamW
}

var _ trainer.Backend = (*Backend)(nil)

// New returns a backend without a checkpoint.
func New(cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Backend{cfg: cfg}, nil
}

// Load implements trainer.Backend.
func (b *Backend) Load(files map[string][]byte) error {
	m, opt, err := Load(files, b.cfg.Optimizer)
	if err != nil {
		return err
	}
	b.m, b.opt = m, opt
	return nil
}

// Train implements trainer.Backend.
func (b *Backend) Train(ctx context.Context, batch trainer.Batch) (trainer.Metrics, error) {
	if b.m == nil {
		return trainer.Metrics{}, fmt.Errorf("trainer/tiny: train step %d: %w", batch.Step, ErrUnloaded)
	}
	m, err := Train(ctx, b.m, b.opt, batch.Samples, b.cfg)
	if err != nil {
		b.m, b.opt = nil, nil // half an update is in them
		return trainer.Metrics{}, fmt.Errorf("step %d: %w", batch.Step, err)
	}
	return m.Metrics, nil
}

// Files implements trainer.Backend.
func (b *Backend) Files() (map[string][]byte, error) {
	if b.m == nil {
		return nil, fmt.Errorf("trainer/tiny: files: %w", ErrUnloaded)
	}
	return Files(b.m, b.opt)
}

// Context implements trainer.Backend.
func (b *Backend) Context() int {
	if b.m == nil {
		return 0
	}
	return b.m.Config().MaxPositionEmbeddings
}

// Files returns a full checkpoint by path: configuration, weights, optimizer.
// Equal state makes equal bytes.
func Files(m *model.Model, opt *model.AdamW) (map[string][]byte, error) {
	files, err := m.Files()
	if err != nil {
		return nil, fmt.Errorf("trainer/tiny: checkpoint: %w", err)
	}
	state, err := opt.Files(m)
	if err != nil {
		return nil, fmt.Errorf("trainer/tiny: checkpoint: %w", err)
	}
	for path, b := range state {
		files[path] = b
	}
	return files, nil
}

// Load returns the model and optimizer of a checkpoint. Without the optimizer's
// file, as at version 0, the moments begin at zero.
func Load(files map[string][]byte, c model.AdamWConfig) (*model.Model, *model.AdamW, error) {
	m, err := model.Open(files)
	if err != nil {
		return nil, nil, fmt.Errorf("trainer/tiny: load checkpoint: %w", err)
	}
	if _, ok := files[model.OptimizerFile]; !ok {
		return m, model.NewAdamW(m, c), nil
	}
	opt, err := model.OpenAdamW(files, m, c)
	if err != nil {
		return nil, nil, fmt.Errorf("trainer/tiny: load checkpoint: %w", err)
	}
	return m, opt, nil
}
