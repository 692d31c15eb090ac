package local

import "testing"

func TestHandlesOfPeople(t *testing.T) {
	for name, want := range map[string]string{"ada": "ada", `OFFICE\Ada Lovelace`: "office-ada-lovelace", "--x--": "x", "": "person", "名": "person"} {
		if got := handleOf(name); got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
	if PersonHandle() == "" {
		t.Error("nobody")
	}
}
