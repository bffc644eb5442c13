package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/rlfleet/rlfleet/store"
)

const testSpec = "apiVersion: rlfleet/v1\nkind: Experiment\nmetadata: {name: files}\nspec:\n  envs:\n  - name: files\n    tasks: {source: <tasks>}\n"

// recorded is the record of small, made once: the tests that change it work on a copy.
var recorded *memory

func record(t testing.TB) *memory {
	if recorded == nil {
		recorded = small().make(t)
	}
	return &memory{objects: maps.Clone(recorded.objects)}
}

func small() *simulation {
	return &simulation{steps: 9, groups: 4, size: 8, evalEvery: 3, episodes: 16, spec: testSpec}
}

func write(t testing.TB, s store.ObjectStore) string {
	var b bytes.Buffer
	require.NoError(t, Write(t.Context(), s, testRun, &b))
	if dir := os.Getenv("REPORT_DIR"); dir != "" { // to look at it
		require.NoError(t, os.WriteFile(dir+"/"+strings.ReplaceAll(t.Name(), "/", "-")+".html", b.Bytes(), 0o600))
	}
	return b.String()
}

// text is what a page says, without its markup.
func text(page string) string {
	page = regexp.MustCompile(`(?s)<style>.*</style>`).ReplaceAllString(page, "")
	return strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")), " ")
}

func TestReportSaysWhatHappened(t *testing.T) {
	page := write(t, record(t))
	said := text(page)
	for _, want := range []string{
		"run files-1 of experiment files", "succeeded", "started 2026-11-03 10:00:00 UTC", "9 of 9", "lost · trained twice 0 · 0 sealed episodes · groups",
		"Mean reward by version", "evaluation held-out", "stops at 0.95 on evaluation",
		"Verdicts by version", "End reasons by version", "Lag of the trained episodes", "Lag by step", "Episodes settled", "Tokens sampled",
		"Entropy", "KL to the behaviour policy", "Gradient norm", "Clipped tokens", "Effective sample size", "Episode length", "Time of a step",
		"An early failure", "A late success", "Across a switch of versions", "task train-0001",
		"bash cat F", "ok, 2.4ms, exit 0", "expected &lt;7&gt;, got &lt;3&gt;", "checks failed", "checks passed", "disposition train",
		"tests = 0 × 1", "&lt;end&gt;", "trained, advantage -0.", "source: &lt;tasks&gt;",
	} {
		require.True(t, strings.Contains(said, want), want)
	}
	require.Regexp(t, `consumed 36 \d`, said, "9 steps of 4 groups")
	require.Regexp(t, `title="token \d+, version \d+\nlog-probability -\d\.\d+ \(\d+\.\d\x{a0}%\)"`, page)
	require.Regexp(t, `<span class="tok v2[^"]*" title="token \d+, version `, page, "two versions, two colours")
	for _, bad := range []string{"NaN", "Inf", "%!", "nothing recorded", ">-0<", "ZgotmplZ"} {
		require.NotContains(t, page, bad)
	}
}

// The page fetches nothing and runs nothing.
func TestReportIsSelfContained(t *testing.T) {
	page := write(t, record(t))
	require.NotRegexp(t, `(?i)<script|<link|<img|<iframe|<object|@import|url\(|src=|href=|https?:|\son[a-z]+=`, page)
	require.Contains(t, page, "prefers-color-scheme: dark")
}

// Every tag is closed: the page is XML but for its doctype and void elements.
func TestReportIsWellFormed(t *testing.T) {
	d := xml.NewDecoder(strings.NewReader(write(t, record(t))))
	d.Entity = xml.HTMLEntity
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}

func TestReportIsReproducible(t *testing.T) {
	s := record(t)
	require.Equal(t, write(t, s), write(t, s))
}

// A run that goes on, or has hardly begun, has a page too.
func TestReportOfAnUnfinishedRun(t *testing.T) {
	s := small()
	s.unended = true
	require.Contains(t, text(write(t, s.make(t))), "not ended the page shows what is in the store so far")

	s = &simulation{steps: 0, groups: 1, size: 1, evalEvery: 1, episodes: 0, unended: true, spec: "from a later version"}
	said := text(write(t, s.make(t)))
	require.Contains(t, said, "run files-1 of experiment files-1", "a spec that cannot be read names nothing")
	require.Contains(t, said, "nothing recorded")
	require.Contains(t, said, "No training episode with messages has settled.")
}

// A long run makes no longer page: its charts show means.
func TestReportOfALongRun(t *testing.T) {
	s := &simulation{steps: 260, groups: 1, size: 2, evalEvery: 5, episodes: 1, spec: testSpec}
	page := write(t, s.make(t))
	require.Less(t, strings.Count(page, `class="hover"`), 15*points)
	said := text(page)
	require.Contains(t, said, "27 of 53, evenly spaced")
	require.Contains(t, said, "version 0 to 4 ")
}

func TestSome(t *testing.T) {
	list := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	require.Equal(t, list, some(list, 10))
	require.Equal(t, []int{0, 2, 4, 6, 8, 9}, some(list, 9))
	require.Equal(t, []int{0, 9}, some(list, 1))
	require.Empty(t, some([]int{}, 3))
}

// What cannot be read is said, and the rest is shown.
func TestReportOfADamagedStore(t *testing.T) {
	s := record(t)
	for key := range s.objects {
		if strings.HasSuffix(key, ".steps.arrow") {
			s.objects[key] = s.objects[key][:100]
		}
		if strings.HasSuffix(key, ".blob") {
			delete(s.objects, key)
		}
	}
	said := text(write(t, s))
	require.Equal(t, 3, strings.Count(said, "It cannot be shown whole: trajectory: steps shard sha256:"))
	require.Contains(t, said, "Mean reward by version")
}

func TestReportOfNothing(t *testing.T) {
	err := Write(t.Context(), record(t), "other", io.Discard)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorContains(t, err, "report: other")
	require.ErrorContains(t, Write(t.Context(), record(t), testRun, fullDisk{}), "report: files-1: no room")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no room") }

func TestAxis(t *testing.T) {
	for _, c := range []struct {
		lo, hi float64
		n      int
		whole  bool
		want   []float64
	}{
		{0, 1, 5, false, []float64{0, 0.2, 0.4, 0.6, 0.8, 1}},
		{0, 9, 12, true, []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{0, 96, 12, true, []float64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90}},
		{3, 3, 4, true, []float64{3, 4}},
	} {
		require.InDeltaSlice(t, c.want, newAxis("", c.lo, c.hi, c.n, c.whole).ticks, 1e-9)
	}
	a := upTo("", 0.02, 0.037, 3)
	require.InDeltaSlice(t, []float64{0, 0.02, 0.04}, a.ticks, 1e-12)
	a = upTo("", -0.05, 0.07, 4)
	require.InDelta(t, -0.05, a.lo, 1e-12)
	require.GreaterOrEqual(t, a.hi, 0.07)
	require.Equal(t, "version 12", newAxis("version", 0, 20, 4, true).at(12))
	require.Equal(t, "time 40 s", newAxis("time, s", 0, 90, 4, false).at(40))
}

func TestNumber(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.5: "0.5", 0.12345: "0.123", 1234: "1,234", 12345: "12.3k", 3e6: "3M", 0.00003: "3e-05", -2: "-2"} {
		require.Equal(t, want, number(x))
	}
}

func TestVocabulary(t *testing.T) {
	v, err := parseVocabulary([]byte(`{"model":{"vocab":{"Ġls":5}},"added_tokens":[{"id":7,"content":"<end>"}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{" ls", "<end>", "#9"}, []string{v.text(5), v.text(7), v.text(9)})
	_, err = parseVocabulary([]byte(`{}`))
	require.ErrorIs(t, err, errVocabulary)
	require.Equal(t, "#3", vocabulary(nil).text(3))
}

// BenchmarkWrite makes the page of a run of about 26,000 episodes.
func BenchmarkWrite(b *testing.B) {
	s := (&simulation{steps: 96, groups: 16, size: 16, evalEvery: 10, episodes: 128, spec: testSpec}).make(b)
	b.ReportAllocs()
	for b.Loop() {
		write(b, s)
	}
}
