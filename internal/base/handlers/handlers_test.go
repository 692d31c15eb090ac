package handlers_test

import (
	"testing"

	"github.com/parleyhub/parley/internal/base/handlers"
)

func TestListMayChangeWhileItIsCalled(t *testing.T) {
	var l handlers.List[func()]
	var called string
	note := func(name string) func() { return func() { called += name } }
	l.Add(note("a"))
	var removeB func()
	l.Add(func() {
		removeB()
		l.Add(note("d"))
	})
	removeB = l.Add(note("b"))
	for round, want := range []string{"ab", "abad", "abadadd"} {
		for _, f := range l.All() {
			(*f)()
		}
		if called != want {
			t.Fatalf("after round %d: %q, want %q", round+1, called, want)
		}
	}
	removeB()
	if n := len(l.All()); n != 5 {
		t.Fatalf("%d handlers are left, want 5", n)
	}
}
