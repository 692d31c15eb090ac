package documents_test

import (
	"fmt"
	"testing"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/documents"
)

// copyOf is a program's copy of a document.
type copyOf struct {
	*crdt.Doc
	epoch uint64
	hub   crdt.StateVector
}

func (c *copyOf) sync(t *testing.T, l *documents.Library) error {
	t.Helper()
	has := documents.Copy{Epoch: c.epoch, Vector: c.StateVector().Encode()}
	if c.hub != nil {
		has.Update = c.EncodeSince(c.hub)
	}
	rest, err := l.Sync(t.Context(), "plan", has)
	if err != nil {
		return err
	}
	if _, err := c.Apply(rest.Update, nil); err != nil {
		t.Fatal(err)
	}
	c.epoch = rest.Epoch
	c.hub, err = crdt.DecodeStateVector(rest.Vector, 100)
	return err
}

// Two programs edit copies of one document while neither reaches the hub. A copy that is sent twice changes nothing.
func TestCopiesAreMerged(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	if _, err := l.Sync(t.Context(), "plan", documents.Copy{}); documents.CodeOf(err) != documents.CodeNotFound {
		t.Fatalf("without a document: %v", err)
	}
	if _, err := l.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpText, Path: []string{"notes"}, Text: "middle"}}); err != nil {
		t.Fatal(err)
	}
	copies := []*copyOf{{Doc: crdt.New(crdt.Options{})}, {Doc: crdt.New(crdt.Options{})}}
	sync := func() {
		for _, c := range copies {
			if err := c.sync(t, l); err != nil {
				t.Fatal(err)
			}
		}
	}
	sync()
	for i, c := range copies {
		for k := range 9 {
			if _, err := c.Transact(nil, func() error { return c.Text("notes").Insert(i*c.Text("notes").Len(), fmt.Sprint(k)) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := copies[1].hub
	sync()
	copies[1].hub = before // its answer was lost
	sync()
	sync()
	for _, c := range copies {
		if got := c.Text("notes").String(); got != "876543210middle012345678" {
			t.Errorf("a copy has %q", got)
		}
	}
	if _, err := l.Sync(t.Context(), "plan", documents.Copy{Vector: []byte{0xff}}); documents.CodeOf(err) != documents.CodeInvalid {
		t.Errorf("a vector that is none: %v", err)
	}
	if _, err := l.Sync(t.Context(), "plan", documents.Copy{Update: []byte{0xff}}); documents.CodeOf(err) != documents.CodeInvalid {
		t.Errorf("an update that is none: %v", err)
	}
	if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	if err := copies[0].sync(t, l); documents.CodeOf(err) != documents.CodeChanged {
		t.Errorf("a copy of the last epoch: %v", err)
	}
}
