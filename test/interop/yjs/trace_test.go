//go:build interop

package yjs_test

import (
	"bytes"
	"flag"
	"testing"
	"time"

	"github.com/parleyhub/parley/crdt"
)

// Both engines replay one editing trace and must write the same bytes. The test logs the durations without judging
// them.
func TestEditingTrace(t *testing.T) {
	trace := trace(1, *traceLength)
	list := make([][]any, len(trace))
	for i, e := range trace {
		list[i] = []any{e.At, e.Delete, e.Insert}
	}
	npm := decode[struct {
		Edit, Encode, Load float64
		Updates, Length    int
		State              []byte
	}](t, newBridge(t).do(command{"op": "trace", "trace": list})[0])

	d := crdt.New(crdt.Options{Client: 1})
	text, updates := d.Text("t"), 0
	start := time.Now()
	for _, e := range trace {
		u, err := d.Transact(nil, func() error {
			if err := text.Delete(e.At, e.Delete); err != nil {
				return err
			}
			return text.Insert(e.At, e.Insert)
		})
		if err != nil {
			t.Fatal(err)
		}
		updates += len(u)
	}
	edited := time.Now()
	state := d.Snapshot()
	encoded := time.Now()
	if _, err := crdt.New(crdt.Options{}).Apply(state, nil); err != nil {
		t.Fatal(err)
	}
	loaded := time.Now()
	if !bytes.Equal(state, npm.State) {
		t.Errorf("for the same edits this engine wrote %d bytes, npm yjs %d: %s", len(state), len(npm.State), result{state: string(state)}.difference(result{state: string(npm.State)}))
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	t.Logf("%d edits, %d units, state of %d bytes", len(trace), text.Len(), len(state))
	t.Logf("              this engine    npm yjs")
	t.Logf("edit           %8.1f ms %8.1f ms", ms(edited.Sub(start)), npm.Edit)
	t.Logf("encode         %8.1f ms %8.1f ms", ms(encoded.Sub(edited)), npm.Encode)
	t.Logf("load           %8.1f ms %8.1f ms", ms(loaded.Sub(encoded)), npm.Load)
	t.Logf("updates        %8d B  %8d B", updates, npm.Updates)
}

var (
	scenarios   = flag.Int("crdt.scenarios", 300, "scenarios of dense conflicts")
	seeds       = flag.Int("crdt.seeds", 200, "runs of mixed replicas")
	traceLength = flag.Int("crdt.trace", 150_000, "edits in the editing trace")
	steps       = flag.Int("crdt.steps", 400, "edits in each of them")
)
