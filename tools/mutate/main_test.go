package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every mutation's text occurs exactly once in its file, so each mutation changes the line that it is meant for.
func TestEveryMutationsTextOccursOnce(t *testing.T) {
	for _, m := range mutations {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("property %s, %s (%s): %q occurs %d times", m.property, m.file, m.breaks, m.old, n)
		}
	}
}
