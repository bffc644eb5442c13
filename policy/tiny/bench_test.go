package tiny

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// cpu returns the processor time this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// full makes n sequences of exactly length tokens, all but the first actions.
func full(n, length, vocab int) []Sequence {
	rng := rand.New(rand.NewPCG(1, 1))
	seqs := make([]Sequence, n)
	for i := range seqs {
		s := Sequence{Tokens: make([]int32, length), Action: make([]bool, length)}
		for t := range length {
			s.Tokens[t], s.Action[t] = int32(rng.IntN(vocab)), t > 0
		}
		seqs[i] = s
	}
	return seqs
}

// BenchmarkTrain reports tokens for each second of processor time, forward + backward + optimizer, all positions trained.
func BenchmarkTrain(b *testing.B) {
	for _, size := range []struct {
		name      string
		n, length int
		vocab     int
	}{{"64x64", 64, 64, 64}, {"256x24", 256, 24, 64}} {
		b.Run(size.name, func(b *testing.B) {
			m, err := New(DefaultConfig(size.vocab), 1)
			if err != nil {
				b.Fatal(err)
			}
			t, opt := NewBatcher(m), NewAdamW(m, DefaultAdamW())
			seqs := full(size.n, size.length, size.vocab)
			b.ResetTimer()
			start := cpu(b)
			for b.Loop() {
				g, err := t.Gradient(seqs, func(_ int, logp, _, dlogp, _ []float64) {
					for i := range logp {
						dlogp[i] = -1e-3
					}
				})
				if err != nil {
					b.Fatal(err)
				}
				ClipNorm(g, 1)
				opt.Step(m, g, 1e-3)
			}
			used := cpu(b) - start
			b.ReportMetric(float64(b.N*size.n*size.length)/used.Seconds(), "tok/cpu-s")
		})
	}
}

// BenchmarkForward reports tokens for each second of processor time, log-probabilities only.
func BenchmarkForward(b *testing.B) {
	m, err := New(DefaultConfig(64), 1)
	if err != nil {
		b.Fatal(err)
	}
	t, seqs := NewBatcher(m), full(64, 64, 64)
	start := cpu(b)
	for b.Loop() {
		if _, err := t.Logprobs(seqs); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*64*64)/(cpu(b)-start).Seconds(), "tok/cpu-s")
}

// BenchmarkDecode reports tokens for each second of processor time over 64 sequences of 8 to 40 tokens, without sampling.
func BenchmarkDecode(b *testing.B) {
	m, err := New(DefaultConfig(64), 1)
	if err != nil {
		b.Fatal(err)
	}
	d, ext := &Decoder{}, make([]Extension, 64)
	for i := range ext {
		ext[i] = Extension{Cache: NewCache(m), Tokens: make([]int32, 8), Want: true}
	}
	if _, err := d.Extend(m, ext); err != nil {
		b.Fatal(err)
	}
	one := []int32{3}
	start := cpu(b)
	for b.Loop() {
		for i := range ext {
			ext[i].Tokens = one
			if ext[i].Cache.Len() >= 40 {
				ext[i].Cache.Truncate(8)
			}
		}
		if _, err := d.Extend(m, ext); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*64)/(cpu(b)-start).Seconds(), "tok/cpu-s")
}
