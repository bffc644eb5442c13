// Package report makes one self-contained page of a run out of what the store has of it.
//
// The page needs no network, no script and no coordinator: charts are inline
// SVG, colours follow the reader's light or dark preference, and all numbers
// come from the mirrored log (package trajectory). Of the recorded messages only
// those of three sampled episodes are read, so that a run of any size makes a
// page of the same size.
package report

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"github.com/rlfleet/rlfleet/store"
	"github.com/rlfleet/rlfleet/trajectory"
)

//go:embed page.html style.css
var assets embed.FS

// Write reads a run and writes its page. The same record gives the same page,
// whoever asks and when. It returns store.ErrNotFound when the store has nothing
// of the run. Damaged shards do not stop it: the page says what could not be read.
func Write(ctx context.Context, s store.ObjectStore, run string, w io.Writer) error {
	r, err := trajectory.OpenRun(ctx, s, run)
	if err != nil {
		return fmt.Errorf("report: %s: %w", run, err)
	}
	f := collect(r)
	p := page{Head: f.header(), Tiles: f.tiles(), Figures: f.figures(), Tables: f.tables(), Spec: spec(r.Spec)}
	if p.Episodes, err = f.episodes(ctx, s); err != nil {
		return fmt.Errorf("report: %s: %w", run, err)
	}
	style, err := assets.ReadFile("style.css")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	p.Style = template.CSS(style)
	t, err := template.ParseFS(assets, "page.html")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	b := bufio.NewWriter(w)
	if err := t.Execute(b, p); err != nil {
		return fmt.Errorf("report: %s: %w", run, err)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("report: %s: %w", run, err)
	}
	return nil
}

// spec renders the canonical JSON of an experiment for reading, and anything else as it is.
func spec(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}

// page is what page.html shows.
type page struct {
	Style    template.CSS
	Head     head
	Tiles    []tile
	Figures  []section
	Tables   []table
	Episodes []episode
	Spec     string
}

// head names the run.
type head struct {
	Run, Experiment string
	State, Class    string // as shown, and its colour
	Reason          string
	Facts           []string
	Warnings        []string // what makes the page doubtful
}

// tile is one number that matters.
type tile struct{ Label, Value, Note string }

// section is a heading with figures below it.
type section struct {
	Title, Note string
	Figures     []figure
}

// figure is a chart with its title and legend.
type figure struct {
	Size   string // wide, half or third
	Title  string
	Note   string
	Legend []key
	SVG    template.HTML
}

// key explains one mark of a figure. Class is its colour.
type key struct{ Mark, Class, Label string }

// table is rows of text; columns from the second on are numbers unless Left says otherwise.
type table struct {
	Title, Note string
	Columns     []string
	Left        map[int]bool
	Rows        [][]string
	Empty       string // said when there are no rows
}
