package state

import (
	"fmt"
	"strconv"
)

// Keys are built by hand: every command builds several. They sort as the
// numbers in them do, and memberKey is what lease.Member returns.

func seqKey(n uint64) string {
	var b [20]byte
	return string(appendUint(b[:0], n, 20))
}

func groupKey(run string, id uint64) string {
	b := make([]byte, 0, len(run)+1+12+1+6)
	return string(appendUint(append(append(b, run...), '/'), id, 12))
}

func numberKey(run string, n int64) string {
	if n < 0 { // only from a senseless command
		return fmt.Sprintf("%s/%012d", run, n)
	}
	return groupKey(run, uint64(n))
}

func memberKey(run string, group uint64, index int32) string {
	if index < 0 {
		return fmt.Sprintf("%s/%012d/%06d", run, group, index)
	}
	b := make([]byte, 0, len(run)+1+12+1+6)
	b = appendUint(append(append(b, run...), '/'), group, 12)
	return string(appendUint(append(b, '/'), uint64(index), 6))
}

// appendUint appends n with leading zeros to a width.
func appendUint(b []byte, n uint64, width int) []byte {
	var digits [20]byte
	d := strconv.AppendUint(digits[:0], n, 10)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}
