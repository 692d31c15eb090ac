// Package crdttest generates what tests and benchmarks of documents edit.
package crdttest

import "math/rand/v2"

// Edit is one edit of a text: at an index, Delete units go and Insert comes.
type Edit struct {
	At     int
	Delete int
	Insert string
}

// Trace returns n edits as a person at a keyboard makes them: bursts of typing at a
// cursor with corrections by backspace, jumps mostly to places near by, a
// word deleted now and then, a paragraph pasted rarely. The same seed gives the
// same trace; the text ends with about half a character for each edit.
func Trace(seed uint64, n int) []Edit {
	r := rand.New(rand.NewPCG(seed, 0))
	words := []string{"agent", "the ", "of ", "document", ", ", "meets", "a ", "room", ". ", "and ", "merge", "é", "\n"}
	edits := make([]Edit, 0, n)
	length, cursor := 0, 0
	do := func(e Edit) {
		edits = append(edits, e)
		units := len([]rune(e.Insert)) // no character of two units is used
		length += units - e.Delete
		cursor = e.At + units
	}
	for len(edits) < n {
		switch k := r.IntN(100); {
		case k < 55: // a burst of typing, key by key
			for range 1 + r.IntN(4) {
				for _, c := range words[r.IntN(len(words))] {
					if len(edits) < n {
						do(Edit{At: cursor, Insert: string(c)})
					}
				}
			}
		case k < 80: // backspaces
			for range 1 + r.IntN(8) {
				if cursor > 0 && len(edits) < n {
					do(Edit{At: cursor - 1, Delete: 1})
				}
			}
		case k < 92: // the cursor moves near by
			cursor = max(0, min(length, cursor+r.IntN(400)-200))
		case k < 96: // or anywhere
			cursor = r.IntN(length + 1)
		case k < 99: // a selection goes
			if count := min(r.IntN(12), length-cursor); count > 0 {
				do(Edit{At: cursor, Delete: count})
			}
		default: // something is pasted
			s := ""
			for range 5 + r.IntN(20) {
				s += words[r.IntN(len(words))]
			}
			do(Edit{At: cursor, Insert: s})
		}
	}
	return edits
}
