package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Code moves; a mutation whose place has moved along shows nothing.
func TestEveryPlaceIsThereOnce(t *testing.T) {
	for _, m := range mutations {
		text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			t.Errorf("property %s, %s (%s): %q is there %d times", m.property, m.file, m.breaks, m.old, n)
		}
	}
}
