//go:build interop

package yjs_test

import "flag"

var (
	scenarios   = flag.Int("crdt.scenarios", 300, "scenarios of dense conflicts")
	seeds       = flag.Int("crdt.seeds", 200, "runs of mixed replicas")
	traceLength = flag.Int("crdt.trace", 150_000, "edits in the editing trace")
	steps       = flag.Int("crdt.steps", 400, "edits in each of them")
)
