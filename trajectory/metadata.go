package trajectory

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Keys of the schema metadata. keyEpisodes lists "group/index/attempt=rows" of
// what the shard holds, so that a damaged one can still name what is lost.
const (
	keySchema   = "rl.schema"
	keyWriter   = "rl.writer"
	keyRun      = "rl.run_id"
	keyCreated  = "rl.created"
	keyLogprobs = "rl.logprobs_mode"
	keyEpisodes = "rl.episodes"
)

func (w *Writer[R]) metadata() *arrow.Metadata {
	var index strings.Builder
	for i, r := range w.refs {
		if i > 0 {
			index.WriteByte(' ')
		}
		id := strings.TrimPrefix(r.Episode, w.meta.Run+"/")
		fmt.Fprintf(&index, "%s=%d", id, r.Ref.Rows)
	}
	m := arrow.NewMetadata(
		[]string{keySchema, keyWriter, keyRun, keyCreated, keyLogprobs, keyEpisodes},
		[]string{
			fmt.Sprintf("%s/%d", w.table, schemaVersion), w.meta.Writer, w.meta.Run,
			w.meta.Created.UTC().Format(time.RFC3339Nano), string(w.meta.LogprobsMode), index.String(),
		},
	)
	return &m
}

// header is what the schema metadata of a shard says.
type header struct {
	table    Table
	version  int
	meta     Meta
	episodes []string
	rows     int // total over the index
}

// parseHeader returns ErrForeign unless md is that of one of our shards.
func parseHeader(md arrow.Metadata) (header, error) {
	get := func(key string) string {
		v, _ := md.GetValue(key)
		return v
	}
	table, version, ok := strings.Cut(get(keySchema), "/")
	n, err := strconv.Atoi(version)
	if !ok || err != nil || table == "" {
		return header{}, fmt.Errorf("it has no %s: %w", keySchema, ErrForeign)
	}
	h := header{table: Table(table), version: n, meta: Meta{Run: get(keyRun), Writer: get(keyWriter), LogprobsMode: LogprobsMode(get(keyLogprobs))}}
	h.meta.Created, _ = time.Parse(time.RFC3339Nano, get(keyCreated)) // shown, never computed with
	for entry := range strings.FieldsSeq(get(keyEpisodes)) {
		id, rows, _ := strings.Cut(entry, "=")
		k, err := strconv.Atoi(rows)
		if err != nil {
			return header{}, fmt.Errorf("entry %q of %s: %w", entry, keyEpisodes, ErrCorrupt)
		}
		if h.meta.Run != "" {
			id = h.meta.Run + "/" + id
		}
		h.episodes = append(h.episodes, id)
		h.rows += k
	}
	return h, nil
}
