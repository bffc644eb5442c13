package progress

import (
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"charm.land/lipgloss/v2"
	"golang.org/x/sys/unix"
)

// plainEvery is the time between plain lines of a run in which nothing special happens.
const plainEvery = 5 * time.Second

// View shows the progress of one run. On a terminal it is a panel that is drawn
// over itself; elsewhere it is a Line every five seconds, and at once when the
// state changes or an evaluation is done. It never reads input: interrupts
// belong to the caller. It is safe for concurrent use.
type View struct {
	mu     sync.Mutex // guards what follows
	w      io.Writer
	tty    bool
	colour palette
	now    func() time.Time
	width  func() int

	last  Status
	shown bool      // last was shown
	drawn []string  // lines of the panel on the screen
	at    time.Time // of the last plain line
}

// New returns a view that writes to w; tty says that w is a terminal.
func New(w io.Writer, tty bool) *View {
	tty = tty && os.Getenv("TERM") != "dumb"
	return &View{w: w, tty: tty, colour: newPalette(tty && os.Getenv("NO_COLOR") == ""), now: time.Now, width: widthOf(w)}
}

// widthOf returns a function that asks for the terminal's width, and says 80 where there is none.
func widthOf(w io.Writer) func() int {
	f, ok := w.(*os.File)
	return func() int {
		if ok {
			if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
				return int(size.Col)
			}
		}
		return 80
	}
}

// Update shows a status; about four times a second is smooth.
func (v *View) Update(s Status) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tty {
		v.last, v.shown = s, true
		v.draw("")
		return
	}
	if now := v.now(); !v.shown || now.Sub(v.at) >= plainEvery || news(&v.last, &s) {
		v.at = now
		v.print(Line(s) + "\n")
		v.last, v.shown = s, true
		return
	}
}

// news reports whether b says something that a reader of plain lines waits for.
func news(a, b *Status) bool {
	return a.State != b.State || finished(a) != finished(b)
}

func finished(s *Status) (n int) {
	for _, e := range s.Evals {
		if e.Done {
			n++
		}
	}
	return n
}

// Note prints a line that stays: above the panel, or between the plain lines.
func (v *View) Note(line string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.tty {
		v.draw(line + "\n")
		return
	}
	v.print(line + "\n")
}

// Close leaves the last status on the screen and the cursor below it.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drawn, v.shown = nil, false
}

// draw writes above, if anything, and then the panel over its last drawing, with one write: nothing flickers.
func (v *View) draw(above string) {
	var lines []string
	if v.shown {
		// One column less than there is: a full line would wrap on some terminals.
		lines = v.colour.panel(v.last, v.width()-1)
	}
	if above == "" && equal(lines, v.drawn) {
		return
	}
	var b strings.Builder
	if n := len(v.drawn); n > 0 {
		b.WriteString("\x1b[" + strconv.Itoa(n) + "A\r")
	}
	if above != "" {
		b.WriteString("\x1b[J" + above)
	}
	for _, l := range lines {
		b.WriteString(l + "\x1b[K\n")
	}
	if len(lines) < len(v.drawn) {
		b.WriteString("\x1b[J")
	}
	v.drawn = lines
	v.print(b.String())
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// print ignores a closed pipe or a full disk: a run doesn't stop because nobody looks.
func (v *View) print(s string) { _, _ = io.WriteString(v.w, s) }

// cut shortens a line to width columns; escape sequences take none.
func cut(line string, width int) string {
	if lipgloss.Width(line) <= width {
		return line
	}
	return lipgloss.NewStyle().Inline(true).MaxWidth(max(width-1, 1)).Render(line) + "…"
}
