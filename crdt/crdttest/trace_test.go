package crdttest_test

import (
	"reflect"
	"testing"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/crdttest"
)

func TestTraceStaysWithinTheText(t *testing.T) {
	trace := crdttest.Trace(1, 5000)
	if len(trace) != 5000 || !reflect.DeepEqual(trace, crdttest.Trace(1, 5000)) {
		t.Fatalf("there are %d edits, or others the second time", len(trace))
	}
	text := crdt.New(crdt.Options{Client: 1}).Text("t")
	for i, e := range trace {
		if err := text.Delete(e.At, e.Delete); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
		if err := text.Insert(e.At, e.Insert); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
	}
	if text.Len() == 0 {
		t.Error("nothing was written")
	}
}
