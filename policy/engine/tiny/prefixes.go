package tiny

import (
	"container/list"

	model "github.com/rlfleet/rlfleet/policy/tiny"
)

// prefixes keeps the caches of finished continuations for the next turn of the
// same episode, within a bound of memory; the longest unused goes first. A cache is
// only found under the very weights that made it (invariant I10).
type prefixes struct {
	most, held int64
	byKey      map[prefixKey]*list.Element
	order      *list.List // of *prefix, the latest in front
	current    *weights
}

type prefixKey struct {
	session string
	weights *weights
}

type prefix struct {
	key   prefixKey
	ids   []int32 // whose keys and values the cache holds
	cache *model.Cache
	bytes int64
}

func newPrefixes(most int64) *prefixes {
	return &prefixes{most: most, byKey: make(map[prefixKey]*list.Element), order: list.New()}
}

// live drops everything when the live weights have changed: no live request can
// use it any more, and pinned ones compute their prefix again.
func (p *prefixes) live(w *weights) {
	if p.current != w {
		clear(p.byKey)
		p.order.Init()
		p.held = 0
	}
	p.current = w
}

// put keeps a cache. It holds all of ids but the last sampled token.
func (p *prefixes) put(session string, w *weights, ids []int32, c *model.Cache) {
	if session == "" {
		return
	}
	key := prefixKey{session, w}
	p.remove(p.byKey[key])
	e := &prefix{key: key, ids: ids[:c.Len()], cache: c, bytes: int64(c.Bytes() + 4*cap(ids))}
	p.held += e.bytes
	p.byKey[key] = p.order.PushFront(e)
	for p.held > p.most {
		p.remove(p.order.Back())
	}
}

// take removes and returns the session's cache, cut to what it shares with
// prompt and to at least one token less than it, or nil.
func (p *prefixes) take(session string, w *weights, prompt []int32) *model.Cache {
	el := p.byKey[prefixKey{session, w}]
	if session == "" || el == nil {
		return nil
	}
	e := el.Value.(*prefix)
	p.remove(el)
	n := 0
	for n < min(len(e.ids), len(prompt)-1) && e.ids[n] == prompt[n] {
		n++
	}
	e.cache.Truncate(n)
	return e.cache
}

func (p *prefixes) remove(el *list.Element) {
	if el == nil {
		return
	}
	e := p.order.Remove(el).(*prefix)
	delete(p.byKey, e.key)
	p.held -= e.bytes
}
