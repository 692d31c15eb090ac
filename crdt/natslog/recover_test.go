package natslog_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/internal/testbed"
)

// When the head of a document is lost and no replica runs, a new replica rebuilds it from the newest snapshot and the log.
func TestALostHeadIsRebuiltWithoutAReplica(t *testing.T) {
	s := testbed.StartNATS(t)
	nc := connect(t, s)
	d := openWith(t, nc, natslog.Options{Agent: "mars", SnapshotEvery: 4})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 40 {
		if err := d.Edit(ctx, func(doc *crdt.Doc) error { return doc.Text("t").Insert(0, "x") }); err != nil {
			t.Fatal(err)
		}
		if err := d.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	heads, err := js.KeyValue(ctx, "parley_doclog_head")
	if err != nil {
		t.Fatal(err)
	}
	for { // the log has been purged once there is a second snapshot
		entry, err := heads.Get(ctx, "plan")
		if err == nil && entry.Revision() > 1 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no snapshots are stored: ", err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := heads.Purge(ctx, "plan"); err != nil {
		t.Fatal(err)
	}
	again := openWith(t, nc, natslog.Options{Agent: "venus"})
	var n int
	if err := again.View(ctx, func(doc *crdt.Doc) { n = doc.Text("t").Len() }); err != nil || n != 40 {
		t.Errorf("there are %d of 40 edits, %v", n, err)
	}
	if _, err := heads.Get(ctx, "plan"); err != nil {
		t.Errorf("the head is not stored: %v", err)
	}
}
