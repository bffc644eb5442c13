package coordinator

import (
	"fmt"
	"maps"
	"sync"

	"github.com/hashicorp/raft"
)

// memLog is a logStore without a disk that takes what the write-ahead log
// takes: entries without gaps, deletion at the ends only. It outlives its node.
// For the checks it remembers what was compacted.
type memLog struct {
	mu     sync.Mutex // guards all below
	log    map[uint64]*raft.Log
	first  uint64
	last   uint64
	past   map[uint64]*raft.Log // everything that was not taken back, compacted or not
	values map[string][]byte
	terms  map[string]uint64
	fault  func([]*raft.Log) error // called before a write, which waits for it; nil when the disk is well
	freed  chan struct{}           // closed when a disk that is stuck goes on
}

func newMemLog() *memLog {
	return &memLog{log: map[uint64]*raft.Log{}, past: map[uint64]*raft.Log{}, values: map[string][]byte{}, terms: map[string]uint64{}}
}

// copy is what a kill at this moment leaves.
func (m *memLog) copy() *memLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memLog{
		log: maps.Clone(m.log), first: m.first, last: m.last, past: maps.Clone(m.past),
		values: maps.Clone(m.values), terms: maps.Clone(m.terms),
	}
}

// disk sets what happens before each write; nil mends the disk.
func (m *memLog) disk(fault func([]*raft.Log) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fault
	if m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
}

// stick blocks writes until disk is called.
func (m *memLog) stick() {
	freed := make(chan struct{})
	m.disk(func([]*raft.Log) error { <-freed; return nil })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.freed = freed
}

func (m *memLog) Close() error      { return nil }
func (m *memLog) IsMonotonic() bool { return true }

func (m *memLog) FirstIndex() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first, nil
}

func (m *memLog) LastIndex() (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, nil
}

func (m *memLog) GetLog(i uint64, out *raft.Log) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, found := m.log[i]
	if !found {
		return raft.ErrLogNotFound
	}
	*out = *l
	return nil
}

func (m *memLog) StoreLog(l *raft.Log) error { return m.StoreLogs([]*raft.Log{l}) }

func (m *memLog) StoreLogs(logs []*raft.Log) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault != nil {
		if err := fault(logs); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range logs {
		if m.last != 0 && l.Index != m.last+1 {
			return fmt.Errorf("entry %d after %d", l.Index, m.last)
		}
		c := *l
		if m.last == 0 {
			m.first = c.Index
		}
		m.last, m.log[c.Index], m.past[c.Index] = c.Index, &c, &c
	}
	return nil
}

func (m *memLog) DeleteRange(from, to uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if from > m.first && to < m.last {
		return fmt.Errorf("deleting %d to %d leaves a gap in %d to %d", from, to, m.first, m.last)
	}
	for i := max(from, m.first); i <= min(to, m.last); i++ {
		delete(m.log, i)
		if to >= m.last { // taken back, or replaced by a snapshot that may disagree
			delete(m.past, i)
		}
	}
	switch {
	case len(m.log) == 0:
		m.first, m.last = 0, 0
	case from <= m.first:
		m.first = to + 1
	default:
		m.last = from - 1
	}
	return nil
}

func (m *memLog) Set(key, val []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[string(key)] = append([]byte(nil), val...)
	return nil
}

func (m *memLog) Get(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.values[string(key)], nil
}

func (m *memLog) SetUint64(key []byte, val uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terms[string(key)] = val
	return nil
}

func (m *memLog) GetUint64(key []byte) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.terms[string(key)], nil
}
