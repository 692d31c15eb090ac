package replica_test

import (
	"testing"
	"testing/synctest"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

func TestASlowHandlerIsNotifiedOfTheLastChangeOfABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, replica.Options{Agent: "venus"})
		defer r.Close()
		begun, proceed := make(chan struct{}), make(chan struct{})
		notified, last := 0, uint64(0)
		r.OnUpdate(func(u replica.Update) {
			if notified == 0 {
				close(begun)
				<-proceed
			}
			notified, last = notified+1+u.Missed, u.Message.Seq
		})
		add := func() { edit(t, r, func(d *crdt.Doc) error { d.Counter("c").Add(1); return nil }) }
		add()
		<-begun
		const edits = 5000
		for range edits - 1 {
			add()
		}
		close(proceed)
		synctest.Wait()
		if notified != edits || last != edits {
			t.Errorf("the handler knows of %d changes, the last one is %d; made were %d", notified, last, edits)
		}
	})
}
