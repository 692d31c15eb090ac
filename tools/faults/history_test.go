package main

import (
	"strings"
	"testing"
)

func TestBrokenPromisesAreFound(t *testing.T) {
	begin := func() (*history, map[string][]string) {
		h := &history{}
		for i := range 6 {
			h.add(operation{"a", i, i != 3})
		}
		return h, map[string][]string{"a": {"a 0", "a 1", "a 2", "a 4", "a 5"}}
	}
	h, found := begin()
	if broken := check(h.ops, found); len(broken) > 0 {
		t.Errorf("nothing is broken: %q", broken)
	}
	if ok, unknown := h.counts(); ok != 5 || unknown != 1 {
		t.Error(ok, unknown)
	}
	found["a"] = []string{"a 0", "a 1", "a 2", "a 4", "a 3", "a 5"} // its outcome was unknown
	if broken := check(h.ops, found); len(broken) > 0 {
		t.Errorf("nothing is broken: %q", broken)
	}
	for _, kind := range []string{"lost", "twice", "order"} {
		h, found := begin()
		if !mutate(kind, h, &found) {
			t.Fatal(kind)
		}
		if broken := check(h.ops, found); len(broken) != 1 || !strings.HasPrefix(broken[0], kind+":") {
			t.Errorf("%s: %q", kind, broken)
		}
	}
	if mutate("other", h, &found) {
		t.Error("an unknown mutation")
	}
	found["a"] = append(found["a"], "a 3", "a 3")
	if broken := check(h.ops, found); len(broken) != 1 {
		t.Errorf("an unknown outcome may come once: %q", broken)
	}
}
