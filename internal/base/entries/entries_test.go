package entries_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/parleyhub/parley/internal/base/entries"
	"github.com/parleyhub/parley/internal/base/statefile"
)

type word struct{ Name, Text string }

func (w word) Key() string { return w.Name }

func read(t *testing.T, path string) *entries.List[word] {
	t.Helper()
	l, err := entries.Read[word](path, "words are lost", nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAListIsKeptInItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words.json")
	l := read(t, path)
	for _, w := range []word{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"a", "3"}, {"c", "4"}} {
		if err := l.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"b", "x"} {
		if err := l.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	want := []word{{"a", "3"}, {"c", "4"}}
	if got := l.All(); !slices.Equal(got, want) {
		t.Errorf("the list is %v", got)
	}
	if got := read(t, path).All(); !slices.Equal(got, want) {
		t.Errorf("the file has %v", got)
	}
}

func TestADamagedListIsNotedAndBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "words.json")
	for _, content := range []string{"{", `{"version":99}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var noted statefile.Damage
		l, err := entries.Read[word](path, "words are lost", func(d statefile.Damage) { noted = d })
		if err != nil || len(l.All()) > 0 || noted.Path != path || noted.Loss != "words are lost" {
			t.Errorf("%s: %v, %v, %+v", content, l, err, noted)
		}
	}
	if _, err := entries.Read[word](t.TempDir(), "", nil); err == nil {
		t.Error("a directory was read")
	}
}

// A change that cannot be stored is not made.
func TestAListThatCannotBeStoredStaysAsItIs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	l := read(t, filepath.Join(dir, "words.json"))
	if err := l.Put(word{"a", "1"}); err == nil {
		t.Fatal("it was stored in a directory that does not exist")
	}
	if len(l.All()) != 0 {
		t.Errorf("it has %v", l.All())
	}
}
