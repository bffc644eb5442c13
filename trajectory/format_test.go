package trajectory

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/format-trajectory.md")

const formatPage = "../docs/format-trajectory.md"

// The page is made from the declaration; `go test ./trajectory -run FormatPage -update` writes it again.
func TestFormatPage(t *testing.T) {
	want := page()
	if *update {
		require.NoError(t, os.WriteFile(formatPage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(formatPage)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "the declaration changed: write the page again with -update")
}

// Every column has a name in the style of the record and says what it is; durations carry their unit.
func TestDeclaration(t *testing.T) {
	var check func(t *testing.T, path string, c Column)
	check = func(t *testing.T, path string, c Column) {
		path += c.Name
		require.Regexp(t, `^[a-z][a-z0-9_]*$`, c.Name, path)
		require.NotEmpty(t, c.Doc, path)
		require.LessOrEqual(t, len(c.Enum), 127, "%s: the index is an int8", path)
		seen := map[string]bool{}
		for _, f := range c.Fields {
			require.False(t, seen[f.Name], path+"."+f.Name)
			seen[f.Name] = true
			check(t, path+".", f)
		}
	}
	for _, table := range []Table{Episodes, Steps, Verdicts, Ledger, Annotations} {
		seen := map[string]bool{}
		for _, c := range Columns(table) {
			require.False(t, seen[c.Name], c.Name)
			seen[c.Name] = true
			check(t, string(table)+".", c)
		}
	}
	// Reward, verdict and disposition belong to the verdict row: readers join.
	for _, c := range Columns(Episodes) {
		require.NotContains(t, []string{"reward", "reward_components", "verdict", "disposition"}, c.Name)
	}
	for typ, values := range enums {
		seen := map[string]bool{}
		for _, v := range values {
			require.False(t, seen[v], "%s has %s twice", typ, v)
			seen[v] = true
		}
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(`# The record of a run

Made from the declaration in package trajectory (schema version ` + fmt.Sprint(schemaVersion) + `); do not edit.

A shard is one Arrow IPC file of one table, compressed with zstd unless it is small. It never changes; its key names its content:

    <run>/objects/sha256/<first two digits>/<64 digits>.<table>.arrow
    <run>/manifest/<20-digit number of the first event>.json

A shard counts only when the mirrored log names its digest. Manifest objects form a chain:

    {"first":N,"last":M,"prev":L,"events":[…]}

` + "`events`" + ` are the messages of proto/raftlog/v1/event.proto as protojson with proto field names. Event numbers are shared by all runs of a coordinator and so have
holes within one; ` + "`prev`" + ` is ` + "`last`" + ` of the object before and 0 in the first. Readers take the longest prefix without a gap.

## Rules

- Enumerations are ` + "`dictionary<int8,utf8>`" + ` with the complete dictionary, in the order given here, in every batch.
- Times are microseconds, UTC. Durations are int64 nanoseconds in columns that end in ` + "`_ns`" + `. Digests are ` + "`sha256:<hex>`" + `.
- Lists and their items are not null unless said. A null list was not captured; an empty one was captured and is empty. There is no NaN, and no 0 that stands for missing.
- Text that was not UTF-8 has U+FFFD in place of the bad bytes. Text is a view; token ids are what is exact.
- A reference ` + "(`object`, `batch`, `row`, `rows`)" + ` names rows from a row of a record batch on, going on in the next batch where one ends. Batches end between episodes, except in one larger than 64 MiB.
- Reward, verdict and disposition of an episode are in the verdict row that its settlement in the log names: readers join. Later verdict rows never change it.
- A row that breaks a rule is refused by the writer, with table, episode, step and column.

Schema metadata:

| key | value |
|---|---|
| ` + "`rl.schema`" + ` | table/version, for example ` + "`steps/1`" + `; the version rises only when an older reader would misread |
| ` + "`rl.writer`" + ` | program and build |
| ` + "`rl.run_id`" + ` | run |
| ` + "`rl.created`" + ` | RFC 3339 |
| ` + "`rl.logprobs_mode`" + ` | ` + "`processed_logprobs`: of the distribution sampled from; `raw_logprobs`" + `: before temperature and filters |
| ` + "`rl.episodes`" + ` | what the shard holds: group/index/attempt=rows, separated by spaces; a damaged shard names from it what is lost |
`)
	for _, table := range []Table{Episodes, Steps, Verdicts, Ledger, Annotations} {
		fmt.Fprintf(&b, "\n## %s\n\n| column | type | null | meaning |\n|---|---|---|---|\n", table)
		for _, c := range Columns(table) {
			line(&b, "", c)
		}
	}
	b.WriteString("\n## Enumerations\n")
	done := map[string]bool{}
	for _, table := range []Table{Episodes, Steps, Verdicts, Ledger, Annotations} {
		for _, c := range Columns(table) {
			enumLines(&b, "", c, done)
		}
	}
	return b.String()
}

func line(b *strings.Builder, path string, c Column) {
	null := ""
	if c.Null {
		null = "yes"
	}
	typ := strings.ReplaceAll(c.Type, "dictionary<int8,utf8>", "enum")
	fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", path, c.Name, strings.ReplaceAll(typ, "<", "&lt;"), null, c.Doc)
	for _, f := range c.Fields {
		line(b, path+c.Name+".", f)
	}
}

func enumLines(b *strings.Builder, path string, c Column, done map[string]bool) {
	if c.Enum != nil && !done[c.Name+fmt.Sprint(c.Enum)] {
		done[c.Name+fmt.Sprint(c.Enum)] = true
		fmt.Fprintf(b, "\n- `%s%s`: %s\n", path, c.Name, strings.Join(c.Enum, ", "))
	}
	for _, f := range c.Fields {
		enumLines(b, path+c.Name+".", f, done)
	}
}

// The stored schema is the declared one, and every batch has the complete dictionaries.
func TestDictionariesAreComplete(t *testing.T) {
	s, _, _ := newSealed(t, 3)
	r, err := Open[Step](s.Steps.Data, s.Steps.Digest)
	require.NoError(t, err)
	schema := r.file.Schema()
	for i, c := range Columns(Steps) {
		require.Equal(t, c.Name, schema.Field(i).Name)
		require.Equal(t, c.Null, schema.Field(i).Nullable, c.Name)
	}
	rec, err := r.file.RecordBatch(0)
	require.NoError(t, err)
	for i, n := range columnsOf(reflect.TypeFor[Step]()) {
		if n.kind == kindEnum {
			require.Equal(t, n.enum, dictionaryOf(t, rec.Column(i)), n.name)
		}
	}
}
