package natslog

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
)

// FuzzReadEntry decodes arbitrary log entries: each error has a code, and a decoded entry is encoded again without
// loss (Req 9.5).
func FuzzReadEntry(f *testing.F) {
	box := new(outbox)
	r, err := replica.New(replica.Options{Agent: "mars", State: "plan", Log: box.put})
	if err != nil {
		f.Fatal(err)
	}
	for range 3 {
		if err := r.Edit(f.Context(), func(d *crdt.Doc) error { return d.Counter("n").Add(1) }); err != nil {
			f.Fatal(err)
		}
	}
	if err := r.Close(); err != nil { // its goroutines would distort the coverage
		f.Fatal(err)
	}
	body, err := entryBody(box.queue)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(kindUpdates, body)
	f.Add(kindUpdates, body[:len(body)-3])
	f.Add(kindClose, []byte(`{"epoch":0,"writer":"w","client":7,"counters":["n"]}`))
	f.Add("other", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		header := nats.Header{}
		header.Set(kindHeader, kind)
		header.Set(sumHeader, sumOf(kind, body)) // a forger can compute the checksum
		e, err := readEntry(header, body)
		if err != nil {
			if crdt.CodeOf(err) != crdt.CodeDeserialization {
				t.Fatalf("the error has no code: %v", err)
			}
			return
		}
		var again []byte
		for _, m := range e.messages {
			if again, err = appendMessage(again, m); err != nil {
				t.Fatal(err)
			}
		}
		back, err := readMessages(again)
		if err != nil || len(back) != len(e.messages) {
			t.Fatalf("of %d messages %d are decoded again: %v", len(e.messages), len(back), err)
		}
	})
}
