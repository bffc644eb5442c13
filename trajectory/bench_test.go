package trajectory

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A worker's shard of one second: 130 episodes of 5 messages, about 10 tokens each.
func shardOfOneSecond(b *testing.B) ([]Episode, [][]Step) {
	r := rand.New(rand.NewPCG(1, 2))
	episodes, steps := make([]Episode, 130), make([][]Step, 130)
	for i := range episodes {
		steps[i] = newSteps(EpisodeID(testMeta.Run, uint64(i/16), int32(i%16), 1), 2, 3, r)
		require.Len(b, steps[i], 5)
		episodes[i] = newEpisode(uint64(i/16), int32(i%16), steps[i])
	}
	return episodes, steps
}

func record(b *testing.B, episodes []Episode, steps [][]Step) Sealed {
	rec := NewRecording(testMeta)
	for i := range episodes {
		require.NoError(b, rec.Add(episodes[i], steps[i]))
	}
	s, err := rec.Close()
	require.NoError(b, err)
	return s
}

// BenchmarkRecord is the whole cost of recording one shard, both tables: validation, columns, compression, digest.
func BenchmarkRecord(b *testing.B) {
	episodes, steps := shardOfOneSecond(b)
	b.ReportAllocs()
	var s Sealed
	for b.Loop() {
		s = record(b, episodes, steps)
	}
	b.ReportMetric(float64(len(s.Steps.Data)), "steps-bytes")
	b.ReportMetric(float64(len(s.Episodes.Data)), "episodes-bytes")
}

// BenchmarkRecordOne is the fixed cost of a shard: a worker that goes idle closes small ones.
func BenchmarkRecordOne(b *testing.B) {
	episodes, steps := shardOfOneSecond(b)
	b.ReportAllocs()
	var s Sealed
	for b.Loop() {
		s = record(b, episodes[:1], steps[:1])
	}
	b.ReportMetric(float64(len(s.Steps.Data)), "steps-bytes")
	b.ReportMetric(float64(len(s.Episodes.Data)), "episodes-bytes")
}

func BenchmarkVerdictOne(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		w := NewWriter[Verdict](testMeta)
		require.NoError(b, w.Append(newVerdict(EpisodeID("run-1", 1, 1, 1), 1)))
		_, err := w.Close()
		require.NoError(b, err)
	}
}

func BenchmarkVerdicts(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		w := NewWriter[Verdict](testMeta)
		for i := range 130 {
			require.NoError(b, w.Append(newVerdict(EpisodeID("run-1", uint64(i/16), int32(i%16), 1), 1)))
		}
		_, err := w.Close()
		require.NoError(b, err)
	}
}

func BenchmarkRead(b *testing.B) {
	episodes, steps := shardOfOneSecond(b)
	s := record(b, episodes, steps)
	b.ReportAllocs()
	for b.Loop() {
		r, err := Open[Step](s.Steps.Data, s.Steps.Digest)
		require.NoError(b, err)
		rows, err := r.All()
		require.NoError(b, err)
		require.Len(b, rows, 650)
	}
}

// BenchmarkReadOneEpisode reads a single episode out of a large shard.
func BenchmarkReadOneEpisode(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	w := NewWriter[Step](testMeta)
	for i := range 20_000 {
		require.NoError(b, appendEpisode(w, newSteps(EpisodeID("run-1", uint64(i), 0, 1), 2, 3, r)))
	}
	s, err := w.Close()
	require.NoError(b, err)
	b.Logf("%d bytes, %d batches", len(s.Data), s.Refs[len(s.Refs)-1].Ref.Batch+1)
	i := 0
	for b.Loop() {
		rd, err := Open[Step](s.Data, s.Digest)
		require.NoError(b, err)
		ref := s.Refs[(i*7919)%len(s.Refs)]
		rows, err := rd.Read(ref.Ref)
		require.NoError(b, err)
		require.Equal(b, ref.Episode, rows[0].EpisodeID)
		i++
	}
}
