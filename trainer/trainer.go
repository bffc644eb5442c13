// Package trainer turns assigned batches into committed policy versions.
//
// A Worker joins the gang of a run, loads the head checkpoint, and then for
// each step takes the batch, reads the rows it needs, trains one update through
// a Backend and commits checkpoint, ledger and metrics in one entry. Everything
// that a step computes follows from the checkpoint, the batch and the rows
// alone: the same batch again gives the same checkpoint bit for bit, whatever
// died in between, and Replay proves it from the store.
package trainer

import "errors"

// The kinds of failure that end a Worker. All of them would come back with the
// same batch, so none is retried here.
var (
	// ErrBound reports tokens older than the lag bound allows (invariant I2).
	ErrBound = errors.New("tokens are outside the lag bound")
	// ErrBatch reports a batch whose rows are not what the log says they are.
	ErrBatch = errors.New("batch does not match its rows")
	// ErrCheckpoint reports a checkpoint that cannot be loaded.
	ErrCheckpoint = errors.New("checkpoint cannot be used")
)
