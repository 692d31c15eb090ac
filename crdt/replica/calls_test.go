package replica_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

// A call runs in its caller's goroutine, and yet after what the replica has received before it.
func TestACallRunsAfterWhatWasReceivedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mars, venus, n := newReplica(t, replica.Options{Agent: "mars"}), newReplica(t, replica.Options{Agent: "venus"}), newNetwork()
		defer mars.Close()
		defer venus.Close()
		attach(t, n, "mars", "venus", mars, venus)
		n.settle()
		for i := range 100 {
			edit(t, venus, func(d *crdt.Doc) error { return d.Text("t").Append("x") })
			if err := venus.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, p := range n.take() {
				p.to.receive(p.e)
			}
			if err := mars.View(t.Context(), func(d *crdt.Doc) {
				if got := d.Text("t").Len(); got != i+1 {
					t.Errorf("the document has %d of %d edits", got, i+1)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Calls of several goroutines, and the callbacks of messages, run one at a time.
func TestCallsRunOneAtATime(t *testing.T) {
	const callers, calls = 4, 500
	var unguarded, asked int
	mars, n := newReplica(t, replica.Options{Agent: "mars", Access: func(string) replica.Access {
		asked++
		return replica.Read | replica.Write
	}}), newNetwork()
	defer mars.Close()
	venus := newReplica(t, replica.Options{Agent: "venus"})
	defer venus.Close()
	attach(t, n, "mars", "venus", mars, venus)
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for range calls {
				if err := mars.View(context.Background(), func(*crdt.Doc) { unguarded, asked = unguarded+1, asked+1 }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Go(func() {
		for i := range calls {
			if err := venus.Edit(context.Background(), func(d *crdt.Doc) error { return d.Map("m").Set(fmt.Sprint(i), i) }); err != nil {
				t.Error(err)
			}
			for _, p := range n.take() {
				p.to.receive(p.e)
			}
		}
	})
	running.Wait()
	if unguarded != callers*calls {
		t.Errorf("%d of %d calls are counted: they ran beside others", unguarded, callers*calls)
	}
}

// Close returns after a function that still runs, wherever that is.
func TestCloseWaitsForARunningCall(t *testing.T) {
	for range 100 {
		r := newReplica(t, replica.Options{Agent: "mars"})
		entered, ended := make(chan struct{}), false
		var running sync.WaitGroup
		running.Go(func() {
			if err := r.View(context.Background(), func(*crdt.Doc) {
				close(entered)
				<-r.Done()
				ended = true
			}); err != nil {
				t.Error(err)
			}
		})
		<-entered
		r.Close()
		if !ended {
			t.Error("the replica is closed, and a function runs")
		}
		running.Wait()
	}
}
