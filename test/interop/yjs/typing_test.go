//go:build interop

package yjs_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

// edit is one edit of a text: at an index, Delete units are deleted and Insert is inserted.
type edit struct {
	At     int
	Delete int
	Insert string
}

// trace returns n edits like those of a person at a keyboard: bursts of typing at a cursor with corrections by
// backspace, jumps mostly to nearby positions, sometimes the deletion of a word, rarely a pasted paragraph. The
// same seed leads to the same trace; the text ends with about half a character per edit.
func trace(seed uint64, n int) []edit {
	r := rand.New(rand.NewPCG(seed, 0))
	words := []string{"agent", "the ", "of ", "document", ", ", "meets", "a ", "room", ". ", "and ", "merge", "é", "\n"}
	edits := make([]edit, 0, n)
	length, cursor := 0, 0
	do := func(e edit) {
		edits = append(edits, e)
		units := len([]rune(e.Insert)) // all characters have one unit
		length += units - e.Delete
		cursor = e.At + units
	}
	for len(edits) < n {
		switch k := r.IntN(100); {
		case k < 55: // a burst of typing, key by key
			for range 1 + r.IntN(4) {
				for _, c := range words[r.IntN(len(words))] {
					if len(edits) < n {
						do(edit{At: cursor, Insert: string(c)})
					}
				}
			}
		case k < 80: // backspaces
			for range 1 + r.IntN(8) {
				if cursor > 0 && len(edits) < n {
					do(edit{At: cursor - 1, Delete: 1})
				}
			}
		case k < 92: // the cursor moves to a nearby position
			cursor = max(0, min(length, cursor+r.IntN(400)-200))
		case k < 96: // or anywhere
			cursor = r.IntN(length + 1)
		case k < 99: // a selection is deleted
			if count := min(r.IntN(12), length-cursor); count > 0 {
				do(edit{At: cursor, Delete: count})
			}
		default: // a paragraph is pasted
			s := ""
			for range 5 + r.IntN(20) {
				s += words[r.IntN(len(words))]
			}
			do(edit{At: cursor, Insert: s})
		}
	}
	return edits
}

func TestTraceStaysWithinTheText(t *testing.T) {
	edits := trace(1, 5000)
	if len(edits) != 5000 || !reflect.DeepEqual(edits, trace(1, 5000)) {
		t.Fatalf("the trace has %d edits or is not reproducible", len(edits))
	}
	text := crdt.New(crdt.Options{Client: 1}).Text("t")
	for i, e := range edits {
		if err := text.Delete(e.At, e.Delete); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
		if err := text.Insert(e.At, e.Insert); err != nil {
			t.Fatalf("edit %d: %v", i, err)
		}
	}
	if text.Len() == 0 {
		t.Error("the text is empty")
	}
}
