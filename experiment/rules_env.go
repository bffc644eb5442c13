package experiment

import (
	"fmt"
	"strconv"
	"strings"
)

// scheme returns what stands before "://" in a location, or "".
func scheme(location string) string {
	s, _, ok := strings.Cut(location, "://")
	if !ok {
		return ""
	}
	return s
}

func hostImage(c *checker, s *Spec) {
	for i, e := range s.Envs {
		r := e.Environment.Runtime
		if e.Environment.Image == "host" && r != "bubblewrap" && r != "openenv" {
			c.refuse("host with runtime "+r, "oci://NAME@sha256:… or a directory", env(i, "environment.image"), env(i, "environment.runtime"))
		}
	}
}

func networkAllow(c *checker, s *Spec) {
	for i, e := range s.Envs {
		n := e.Environment.Network
		if (n.Mode == "allow") != (len(n.Allow) > 0) {
			c.refuse(fmt.Sprintf("mode %s with %d hosts", n.Mode, len(n.Allow)), "mode none and no host, or mode allow and hosts",
				env(i, "environment.network.allow"), env(i, "environment.network.mode"))
		}
	}
}

func poolSize(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if p := e.Environment.Pool; p.Warm > p.Max {
			c.refuse(strconv.Itoa(p.Warm), fmt.Sprintf("at most %d", p.Max), env(i, "environment.pool.warm"), env(i, "environment.pool.max"))
		}
	}
}

func openenvTogether(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if (e.Agent.Driver == "openenv") != (e.Environment.Runtime == "openenv") {
			c.refuse(fmt.Sprintf("driver %s with runtime %s", e.Agent.Driver, e.Environment.Runtime), "openenv for both, or for neither",
				env(i, "agent.driver"), env(i, "environment.runtime"))
		}
	}
}

func commandDriver(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if (e.Agent.Driver == "command") != (len(e.Agent.Command) > 0) {
			c.refuse(fmt.Sprintf("driver %s with %d words of command", e.Agent.Driver, len(e.Agent.Command)), "a command with driver command, and none with others",
				env(i, "agent.command"), env(i, "agent.driver"))
		}
	}
}

func toolsOnce(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if e.Agent.Driver == "tools" && len(e.Agent.Tools) == 0 {
			c.refuse("[]", "a list such as [bash]", env(i, "agent.tools"), env(i, "agent.driver"))
		}
		seen := map[string]bool{}
		for j, t := range e.Agent.Tools {
			if seen[t] {
				c.refuse(clip(t)+" twice", "each tool once", env(i, element("agent.tools", j)))
			}
			seen[t] = true
		}
	}
}

func turnTokens(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if a := e.Agent; a.MaxTurnTokens > a.MaxTokens {
			c.refuse(strconv.Itoa(a.MaxTurnTokens), fmt.Sprintf("at most %d", a.MaxTokens), env(i, "agent.maxTurnTokens"), env(i, "agent.maxTokens"))
		}
	}
}

func observation(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if a := e.Agent; a.MaxObservation >= a.MaxContext {
			c.refuse(strconv.Itoa(a.MaxObservation), fmt.Sprintf("below %d", a.MaxContext), env(i, "agent.maxObservation"), env(i, "agent.maxContext"))
		}
	}
}

func agentTimeout(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if e.Agent.Timeout.Duration > s.Deadlines.Episode.Duration {
			c.refuse(e.Agent.Timeout.String(), "at most "+s.Deadlines.Episode.String(), env(i, "agent.timeout"), "spec.deadlines.episode")
		}
	}
}

// verifierFields pairs each field that only one kind reads with that kind.
func verifierFields(c *checker, s *Spec) {
	for i, e := range s.Envs {
		for j, r := range e.Rewards {
			v, at := r.Verifier, env(i, element("rewards", j)+".verifier")
			for _, x := range []struct {
				key, kind string
				given     bool
				needed    bool
			}{
				{"command", "command", len(v.Command) > 0, true},
				{"path", "python", v.Path != "", true},
				{"function", "python", v.Function != "", true},
				{"scope", "python", v.Scope == "group", false},
				{"endpoint", "judge", v.Endpoint != "", true},
				{"overlong", "shaping", v.Overlong != nil, true},
			} {
				if x.given && v.Kind != x.kind {
					c.refuse(x.key+" with kind "+v.Kind, "kind "+x.kind+", or no "+x.key, member(at, x.key), member(at, "kind"))
				}
				if !x.given && x.needed && v.Kind == x.kind {
					c.refuse("kind "+x.kind+" without "+x.key, "the key "+x.key, member(at, x.key), member(at, "kind"))
				}
			}
		}
	}
}

func overlongOrder(c *checker, s *Spec) {
	for i, e := range s.Envs {
		for j, r := range e.Rewards {
			if o := r.Verifier.Overlong; o != nil && o.Soft >= o.Hard {
				at := env(i, element("rewards", j)+".verifier.overlong")
				c.refuse(fmt.Sprintf("soft %d and hard %d", o.Soft, o.Hard), "soft below hard", member(at, "soft"), member(at, "hard"))
			}
		}
	}
}

func shortGroupMin(c *checker, s *Spec) {
	for i, e := range s.Envs {
		g := e.ShortGroup
		found := fmt.Sprintf("min %d with kind %s", g.Min, g.Kind)
		switch {
		case g.Kind != "keep" && g.Min != 0:
			c.refuse(found, "no min", env(i, "shortGroup.min"), env(i, "shortGroup.kind"))
		case g.Kind == "keep" && (g.Min < 2 || g.Min > e.GroupSize):
			c.refuse(found, fmt.Sprintf("{kind: keep, min: N} with N from 2 to %d", e.GroupSize), env(i, "shortGroup.min"), env(i, "shortGroup.kind"), env(i, "groupSize"))
		}
	}
}

func curriculumOrder(c *checker, s *Spec) {
	for i, e := range s.Envs {
		if u := e.Tasks.Curriculum; u != nil && u.PassRate[0] >= u.PassRate[1] {
			c.refuse(fmt.Sprint(u.PassRate), "a lower rate, then a higher one", env(i, "tasks.curriculum.passRate"))
		}
	}
}
