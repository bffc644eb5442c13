package envpool

import (
	"context"
	"fmt"
	"time"
)

// take returns a living slot: a warm one or, where none is, a new one. That
// none can be made is the host's trouble and says nothing of what it was for:
// it is tried again for a while, and then the kind is ErrNoSlot.
func (p *Pool) take(ctx context.Context) (Slot, error) {
	const patience = 5 * time.Second
	pause, late := 100*time.Millisecond, time.Now().Add(patience)
	for {
		p.mu.Lock()
		n := len(p.warm)
		if n == 0 {
			p.slots++
			p.mu.Unlock()
			s, err := p.start(ctx)
			if err == nil {
				return s, nil
			}
			if cerr := ctx.Err(); cerr != nil {
				return nil, fmt.Errorf("%w: %w", ErrNoSlot, cerr)
			}
			if time.Now().Add(pause).After(late) {
				return nil, fmt.Errorf("%w and none can be made: %v", ErrNoSlot, err) //nolint:errorlint // not its kind
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause *= 2
			continue
		}
		s := p.warm[n-1]
		p.warm = p.warm[:n-1]
		p.mu.Unlock()
		p.nudge()
		select {
		case <-s.Dead():
			p.log.Warn("warm sandbox had died")
			p.destroy(ctx, s)
		default:
			return s, nil
		}
	}
}

// start makes a slot, whose place p.slots already counts.
func (p *Pool) start(ctx context.Context) (Slot, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.StartTimeout)
	defer cancel()
	s, err := p.rt.Start(ctx)
	if err != nil {
		p.mu.Lock()
		p.slots--
		p.mu.Unlock()
		return nil, fmt.Errorf("envpool: start sandbox: %w", err)
	}
	p.background(func() { p.watch(s) })
	return s, nil
}

// background runs f until the host closes; a closed host starts nothing.
func (p *Pool) background(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.wg.Go(f)
	}
}

// reset scrubs a slot after its use. It is warm again, or destroyed.
func (p *Pool) reset(ctx context.Context, s Slot) {
	sctx, cancel := context.WithTimeout(ctx, p.cfg.ScrubTimeout)
	err := s.Scrub(sctx)
	cancel()
	if err != nil {
		p.log.Warn("sandbox could not be reset", "err", err)
		p.destroy(ctx, s)
		return
	}
	p.mu.Lock()
	p.count.resets++
	keep := !p.closed && len(p.warm) < p.cfg.WarmHigh
	if keep {
		p.warm = append(p.warm, s)
	}
	p.mu.Unlock()
	if !keep {
		p.destroy(ctx, s)
	}
}

// destroy ends a slot for good; one that cannot be ended is quarantined: never used again, but not forgotten.
func (p *Pool) destroy(ctx context.Context, s Slot) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.ScrubTimeout)
	defer cancel()
	err := s.Close(ctx)
	p.mu.Lock()
	p.slots--
	if err != nil {
		p.quarantined = append(p.quarantined, s)
	} else {
		p.count.destroyed++
	}
	p.mu.Unlock()
	if err != nil {
		p.log.Error("sandbox could not be ended and is quarantined", "err", err)
	}
	p.nudge()
}

// nudge wakes refill.
func (p *Pool) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// refill keeps WarmLow slots ready, making them one at a time.
func (p *Pool) refill() {
	const first, most = 100 * time.Millisecond, 30 * time.Second
	pause := first
	for p.ctx.Err() == nil {
		if p.short() {
			s, err := p.start(p.ctx)
			if err == nil {
				pause = first
				p.mu.Lock()
				p.warm = append(p.warm, s)
				p.mu.Unlock()
				continue
			}
			if p.ctx.Err() != nil {
				return
			}
			p.log.Error("no sandbox could be made ahead", "err", err, "retry", pause)
			select {
			case <-p.ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, most)
			continue
		}
		select {
		case <-p.ctx.Done():
		case <-p.wake:
		}
	}
}

// short reports that a slot should be made ahead, and counts its place.
func (p *Pool) short() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.warm) >= p.cfg.WarmLow || p.slots >= p.cfg.MaxAgents+p.cfg.MaxVerifiers {
		return false
	}
	p.slots++
	return true
}

// watch takes a slot out of the pool when it dies while it is warm.
func (p *Pool) watch(s Slot) {
	select {
	case <-p.ctx.Done():
		return
	case <-s.Dead():
	}
	p.mu.Lock()
	found := false
	for i, w := range p.warm {
		if w == s {
			p.warm = append(p.warm[:i:i], p.warm[i+1:]...)
			found = true
			break
		}
	}
	p.mu.Unlock()
	if found {
		p.log.Warn("warm sandbox died")
		p.destroy(p.ctx, s)
	}
}
