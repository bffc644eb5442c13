package slots

import (
	"sync"
	"time"
)

// Trouble paces work that keeps failing for reasons of its surroundings, and
// keeps the failure after which there is no use in going on. The zero value is ready.
type Trouble struct {
	mu    sync.Mutex // guards all below
	inRow int
	end   error
}

// Each failure in a row makes the next piece of work wait longer.
const (
	troublePause = 20 * time.Millisecond
	troubleMost  = 5 * time.Second
)

// Failed counts a failure.
func (t *Trouble) Failed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inRow++
}

// Passed forgets the failures: something has worked since.
func (t *Trouble) Passed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.inRow = 0
}

// Pause returns how long to wait before asking for more work.
func (t *Trouble) Pause() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(time.Duration(t.inRow)*troublePause, troubleMost)
}

// End keeps the first failure that ends the work.
func (t *Trouble) End(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end == nil {
		t.end = err
	}
}

// Err returns it.
func (t *Trouble) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}
