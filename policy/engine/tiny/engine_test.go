package tiny_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/rlfleet/rlfleet/policy/engine"
	"github.com/rlfleet/rlfleet/policy/engine/enginetest"
	"github.com/rlfleet/rlfleet/policy/engine/tiny"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, p *enginetest.Policies, cfg tiny.Config) *tiny.Engine {
	t.Helper()
	e, err := tiny.New(cfg, p.Load, p.Resolve)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func TestConformance(t *testing.T) {
	for name, change := range map[string]func(*tiny.Config){
		"default": func(c *tiny.Config) { c.MaxPending = 100 },
		"tight":   func(c *tiny.Config) { c.MaxRunning, c.MaxPending, c.PrefillTokens = 3, 12, 5 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := tiny.DefaultConfig()
			change(&cfg)
			enginetest.Run(t, func(t *testing.T, p *enginetest.Policies) enginetest.Subject {
				e := open(t, p, cfg)
				return enginetest.Subject{Engine: e, Close: e.Close, Store: p, Pending: cfg.MaxPending}
			})
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	_, err := tiny.New(tiny.Config{}, nil, nil)
	require.ErrorIs(t, err, engine.ErrInvalid)
}
