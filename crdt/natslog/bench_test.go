package natslog_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/natslog"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/testbed"
)

// BenchmarkLog measures the time until edits of one replica are stored in the log, singly and in hundreds, the
// time until another replica has each, and the opening of a document of 2000 edits from its snapshot and log.
func BenchmarkLog(b *testing.B) {
	b.Run("stored", func(b *testing.B) {
		d := open(b, testbed.StartNATS(b), natslog.Options{Agent: "mars"})
		for b.Loop() {
			set(b, d, 1)
		}
	})
	b.Run("stored in hundreds", func(b *testing.B) {
		d := open(b, testbed.StartNATS(b), natslog.Options{Agent: "mars"})
		for b.Loop() {
			set(b, d, 100)
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(100*b.N), "µs/edit")
	})
	b.Run("at another", func(b *testing.B) {
		s := testbed.StartNATS(b)
		mars, venus := open(b, s, natslog.Options{Agent: "mars"}), open(b, s, natslog.Options{Agent: "venus"})
		received := make(chan struct{}, 1)
		defer venus.OnUpdate(func(replica.Update) { received <- struct{}{} })()
		for b.Loop() {
			edit(b, mars, func(doc *crdt.Doc) error { return doc.Map("m").Set("k", 1) })
			<-received
		}
	})
	b.Run("open", func(b *testing.B) {
		s := testbed.StartNATS(b)
		d := open(b, s, natslog.Options{Agent: "mars"})
		set(b, d, 1500)
		if err := d.Snapshot(b.Context()); err != nil {
			b.Fatal(err)
		}
		set(b, d, 500)
		for b.Loop() {
			open(b, s, natslog.Options{Agent: "venus"}).Close()
		}
	})
}

// set makes edits and waits until they are stored in the log.
func set(b *testing.B, d *natslog.Document, edits int) {
	for i := range edits {
		edit(b, d, func(doc *crdt.Doc) error { return doc.Map("m").Set(fmt.Sprint(i%50), i) })
	}
	flush(b, d)
}
