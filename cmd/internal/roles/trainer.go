package roles

import (
	"github.com/rlfleet/rlfleet/experiment"
	"github.com/rlfleet/rlfleet/rollout"
	"github.com/rlfleet/rlfleet/trainer"
	"github.com/rlfleet/rlfleet/trainer/objective"
	tinytrainer "github.com/rlfleet/rlfleet/trainer/tiny"
)

// trainerConfig converts the spec's words into the backend's.
func trainerConfig(s *experiment.Spec) tinytrainer.Config {
	t := s.Trainer
	c := tinytrainer.DefaultConfig()
	c.Epochs, c.Minibatches, c.LR, c.GradClip = t.Epochs, t.Minibatches, t.LR.Value, t.Optimizer.GradClip
	c.Optimizer.Beta1, c.Optimizer.Beta2, c.Optimizer.WeightDecay = t.Optimizer.Betas[0], t.Optimizer.Betas[1], t.Optimizer.WeightDecay
	c.Loss = objective.PPO{Low: t.Algorithm.Loss.Low, High: t.Algorithm.Loss.High, Dual: t.Algorithm.Loss.Dual}
	c.Entropy, c.Aggregate, c.Length = t.Algorithm.Entropy, objective.Aggregate(t.Algorithm.Aggregate.Kind), float64(s.NormLength())
	return c
}

// workerConfig says how batches of the run become samples.
func workerConfig(run string, s *experiment.Spec) trainer.Config {
	c := trainer.DefaultConfig(run)
	c.LagMax = int64(s.Lag.Max)
	c.Advantage = objective.Estimator{Kind: s.Trainer.Algorithm.Advantage.Kind, Std: s.Trainer.Algorithm.Advantage.Std}
	for _, e := range s.Envs {
		c.ContextOnly = append(c.ContextOnly, e.Agent.Branches == "context")
	}
	return c
}

// ReplayConfig returns what trains a step of a recorded run again, from the spec in its record.
func ReplayConfig(run string, spec []byte) (trainer.Config, trainer.Backend, error) {
	x, err := experiment.Parse(spec, "recorded spec of "+run)
	if err != nil {
		return trainer.Config{}, nil, err
	}
	b, err := tinytrainer.New(trainerConfig(&x.Spec))
	return workerConfig(run, &x.Spec), b, err
}

// rolloutMetrics are registered once a process, however many workers it has.
func (p *Process) rolloutMetrics() *rollout.Metrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.metrics == nil {
		p.metrics = rollout.NewMetrics(p.Registerer)
	}
	return p.metrics
}
