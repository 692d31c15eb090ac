package documents_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/documents"
)

// Pages' edits that follow each other quickly are stored together: the first at once, the others after the pause, or as soon as
// anybody waits for them or they are many.
func TestQuickEditsAreStoredTogether(t *testing.T) {
	b := openBus(t)
	stored := make(chan string, 100)
	l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Changed: func(name string) {
		if name == "plan" {
			stored <- name
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.PauseBetweenBatches(time.Hour)
	d, other := ensure(t, l, "plan"), ensure(t, l, "other")
	page := crdt.New(crdt.Options{})
	submit := func(edits int) {
		t.Helper()
		for range edits {
			u, err := page.Transact(nil, func() error { return page.Text("t").Append("x") })
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Submit(t.Context(), documents.Browser, u, false); err != nil {
				t.Fatal(err)
			}
		}
	}
	submit(1)
	<-stored

	for range 20 {
		submit(1)
		// This takes as long as it would take to store the edit.
		if err := other.Edit(t.Context(), func(doc *crdt.Doc) error { return doc.Text("t").Append("x") }); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Durable(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(stored); n != 1 {
		t.Errorf("20 edits are %d batches", n)
	}
	<-stored

	submit(1000)
	<-stored

	submit(2)
	closeLibrary(t, l)
	l = openLibrary(t, b)
	defer closeLibrary(t, l)
	if err := ensure(t, l, "plan").View(t.Context(), func(doc *crdt.Doc) {
		if n := doc.Text("t").Len(); n != 1023 {
			t.Errorf("%d of 1023 edits are stored", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// An edit that is followed by no other is stored once the pause is over.
func TestTheLastOfQuickEditsIsStored(t *testing.T) {
	b := openBus(t)
	stored := make(chan string, 100)
	l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Changed: func(name string) { stored <- name }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeLibrary(t, l)
	d := ensure(t, l, "plan")
	page := crdt.New(crdt.Options{})
	for i := range 20 {
		u, err := page.Transact(nil, func() error { return page.Map("m").Set(fmt.Sprint(i), i) })
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Submit(t.Context(), documents.Browser, u, false); err != nil {
			t.Fatal(err)
		}
		if i%5 == 4 {
			<-stored
		}
	}
}
