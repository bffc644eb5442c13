package coordinator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	raftlog "github.com/rlfleet/rlfleet/proto/raftlog/v1"
)

// calmly proposes a heartbeat without news.
func calmly(q *queue, ctx context.Context, client string) <-chan answer {
	return calmlyHolding(q, ctx, client, 0)
}

func calmlyHolding(q *queue, ctx context.Context, client string, leases int) <-chan answer {
	out := make(chan answer, 1)
	h := &raftlog.Heartbeat{Patient: true}
	for range leases {
		h.Held = append(h.Held, &raftlog.Held{})
	}
	p := &raftlog.Proposal{Client: client, Seq: 1, Op: &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: h}}}
	go func() {
		r, err := q.propose(ctx, p)
		out <- answer{r, err}
	}()
	return out
}

func clients(e *logEntry) (out []string) {
	for _, p := range e.Proposals {
		out = append(out, p.Client)
	}
	return out
}

func TestPatientProposals(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, q *queue, l *slowLog){
		"wait for each other, and no longer than they may": func(t *testing.T, q *queue, l *slowLog) {
			began := time.Now()
			var out []<-chan answer
			for i := range 5 {
				out = append(out, calmly(q, t.Context(), fmt.Sprint("p", i)))
				time.Sleep(q.cfg.Patience / 10)
			}
			e := <-l.entries
			require.Equal(t, q.cfg.Patience, time.Since(began), "of the first to come")
			require.Len(t, e.Proposals, 5)
			require.GreaterOrEqual(t, e.NowNs, int64(1000+q.cfg.Patience), "stamped when it leaves")
			e.answered <- nil
			for i, o := range out {
				require.Equal(t, fmt.Sprint("p", i), (<-o).result.Message)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Empty(t, l.entries, "answered once, and nothing follows")
		},
		"with much to renew leave in several entries": func(t *testing.T, q *queue, l *slowLog) {
			began := time.Now()
			var out []<-chan answer
			for i := range 4 {
				out = append(out, calmlyHolding(q, t.Context(), fmt.Sprint("p", i), q.cfg.BatchWork/2))
			}
			for i := range 2 {
				e := <-l.entries
				require.Len(t, e.Proposals, 2)
				require.Equal(t, q.cfg.Patience+time.Duration(i)*patientPause, time.Since(began), "others can be applied in between")
				e.answered <- nil
			}
			for _, o := range out {
				require.NoError(t, (<-o).err)
			}
		},
		"go with what cannot wait": func(t *testing.T, q *queue, l *slowLog) {
			calm := calmly(q, t.Context(), "calm")
			time.Sleep(q.cfg.Patience / 2)
			began := time.Now()
			prompt := ask(q, t.Context(), "prompt")
			e := <-l.entries
			require.Zero(t, time.Since(began))
			require.Equal(t, []string{"prompt", "calm"}, clients(e))
			e.answered <- nil
			<-calm
			<-prompt
			later := calmly(q, t.Context(), "later")
			began = time.Now()
			e = <-l.entries
			require.Equal(t, q.cfg.Patience, time.Since(began), "its own time, not the rest of another's")
			e.answered <- nil
			<-later
		},
		"leave when there is no more room": func(t *testing.T, q *queue, l *slowLog) {
			began := time.Now()
			var out []<-chan answer
			for i := range 20 {
				out = append(out, calmly(q, t.Context(), fmt.Sprint("p", i)))
			}
			synctest.Wait()
			seen := map[string]int{}
			for i, when := range []time.Duration{0, q.cfg.Patience} { // 15 have room, and 10 go in an entry
				e := <-l.entries
				require.Len(t, e.Proposals, 10)
				require.Equal(t, when, time.Since(began), i)
				e.answered <- nil
				for _, c := range clients(e) {
					seen[c]++
				}
			}
			for i, o := range out {
				require.NoError(t, (<-o).err)
				require.Equal(t, 1, seen[fmt.Sprint("p", i)], "in one entry")
			}
		},
		"are not kept out by the others": func(t *testing.T, q *queue, l *slowLog) {
			calm := calmly(q, t.Context(), "calm")
			synctest.Wait()
			began := time.Now()
			for i := 0; ; i++ { // prompt ones fill every entry, and more always wait
				var out []<-chan answer
				for j := range 20 {
					out = append(out, ask(q, t.Context(), fmt.Sprint(i, "-", j)))
				}
				synctest.Wait()
				found := false
				for n := 0; n < 20; {
					e := <-l.entries
					time.Sleep(q.cfg.Patience / 20)
					e.answered <- nil
					for _, c := range clients(e) {
						found = found || c == "calm"
						if c != "calm" {
							n++
						}
					}
				}
				for _, o := range out {
					require.NoError(t, (<-o).err)
				}
				if found {
					break
				}
				require.Less(t, time.Since(began), 2*q.cfg.Patience)
			}
			require.NoError(t, (<-calm).err)
		},
		"go at once at the end of a reign": func(t *testing.T, q *queue, l *slowLog) {
			calm := calmly(q, t.Context(), "calm")
			synctest.Wait()
			began := time.Now()
			q.release()
			(<-l.entries).answered <- nil
			<-calm
			require.Zero(t, time.Since(began))
		},
		"are answered at the close": func(t *testing.T, q *queue, l *slowLog) {
			var out []<-chan answer
			for i := range 9 {
				out = append(out, calmly(q, t.Context(), fmt.Sprint("p", i)))
			}
			prompt := ask(q, t.Context(), "prompt")
			e := <-l.entries
			for i := range 9 {
				out = append(out, calmly(q, t.Context(), fmt.Sprint("q", i)))
			}
			synctest.Wait()
			began := time.Now()
			q.close()
			_, err := q.propose(t.Context(), &raftlog.Proposal{Client: "late", Op: &raftlog.Op{Op: &raftlog.Op_Heartbeat{Heartbeat: &raftlog.Heartbeat{Patient: true}}}})
			require.ErrorIs(t, err, ErrStopped)
			e.answered <- nil
			for n := 19 - len(e.Proposals); n > 0; {
				e := <-l.entries
				n -= len(e.Proposals)
				e.answered <- nil
			}
			for _, o := range append(out, prompt) {
				require.NoError(t, (<-o).err)
			}
			require.Zero(t, time.Since(began))
		},
		"may be left by their caller": func(t *testing.T, q *queue, l *slowLog) {
			ctx, cancel := context.WithCancel(t.Context())
			calm := calmly(q, ctx, "calm")
			synctest.Wait()
			cancel()
			require.Equal(t, Unknown, Classify((<-calm).err))
			(<-l.entries).answered <- nil
		},
		"are refused when too many wait": func(t *testing.T, q *queue, l *slowLog) {
			hold := ask(q, t.Context(), "hold")
			e := <-l.entries
			second := ask(q, t.Context(), "second") // in the sender's hands, so that it takes nothing else
			synctest.Wait()
			var out []<-chan answer
			for i := range 100 {
				out = append(out, calmly(q, t.Context(), fmt.Sprint("p", i)))
			}
			synctest.Wait()
			refused := 0
			for _, o := range out {
				select {
				case a := <-o:
					require.ErrorIs(t, a.err, ErrQueueFull)
					refused++
				default:
				}
			}
			require.Equal(t, 100-2*q.cfg.Queue, refused, "both channels are full")
			e.answered <- nil
			for n := 101 - refused; n > 0; {
				e := <-l.entries
				n -= len(e.Proposals)
				e.answered <- nil
			}
			<-hold
			<-second
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, l := startQueue(t, func(c *Config) { c.BatchCount, c.Queue = 10, 30 }, nil)
				test(t, q, l)
			})
		})
	}
}

func TestPatientProposalsWithoutAReign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, _ := startQueue(t, func(*Config) {}, func() (*reign, error) { return nil, ErrNotLeader })
		require.ErrorIs(t, (<-calmly(q, t.Context(), "a")).err, ErrNotLeader)
	})
}
