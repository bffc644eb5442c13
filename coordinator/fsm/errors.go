package fsm

import "errors"

// The kinds of failure of a data directory. Each text says what to do.
var (
	ErrLocked       = errors.New("another process uses it: stop that one or choose another directory")
	ErrNewer        = errors.New("written by a newer rlfleet: run that version or a later one")
	ErrDamaged      = errors.New("data is damaged: restore the directory from a copy; nothing was changed")
	ErrCut          = errors.New("it ends early, it was cut: take another copy")
	ErrNotOurs      = errors.New("it is not a coordinator snapshot: check the path")
	ErrOtherNode    = errors.New("the directory belongs to another node: give each node its own")
	ErrOtherCluster = errors.New("the directory belongs to another cluster: start this node on an empty one")
	ErrRestoreCut   = errors.New("a restore was cut off here before the others had it: rlctl cluster remove this node, empty its directory and join it again")
	ErrNoData       = errors.New("there is no coordinator data: check the path")
	ErrOpenFailed   = errors.New("check that the path is a directory this user may write and that the disk has room")
)

// ErrNotRotated is an append to a log that could not begin its next segment.
var ErrNotRotated = errors.New("the log's next segment could not be made")
