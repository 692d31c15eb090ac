package documents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
)

// blocks returns the files of the log in a bus's data directory.
func blocks(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && strings.Contains(path, string(filepath.Separator)+"hub_CRDT"+string(filepath.Separator)) && strings.HasSuffix(path, ".blk") {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("the log has no file")
	}
	return files
}

// A document whose log has flipped bits or is truncated opens with the intact part. It is complete again when a
// copy that has the rest is attached, and the damage is logged.
func TestADamagedLogOpensWithItsIntactPart(t *testing.T) {
	for name, damage := range map[string]func(b []byte) []byte{
		"flipped bits in the middle":          func(b []byte) []byte { flip(b, len(b)/2); return b },
		"flipped bits all over":               func(b []byte) []byte { flip(b, len(b)/3); flip(b, len(b)/2); flip(b, len(b)*3/4); return b },
		"cut in the middle":                   func(b []byte) []byte { return b[:len(b)/2] },
		"zeroes where a write did not arrive": func(b []byte) []byte { clear(b[len(b)*2/3:]); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open := func() *bus.Bus {
				b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			end := func(b *bus.Bus) {
				if err := b.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
			const changes = 60
			b := open()
			// This library is left open: closing it would store a snapshot, which replaces the log.
			first := openLibrary(t, b)
			d := ensure(t, first, "plan")
			for i := range changes {
				if err := d.Edit(t.Context(), set(fmt.Sprintf("k%02d", i), strings.Repeat("x", 50))); err != nil {
					t.Fatal(err)
				}
			}
			var copied []byte
			if err := d.View(t.Context(), func(doc *crdt.Doc) { copied = doc.Snapshot() }); err != nil {
				t.Fatal(err)
			}
			end(b)
			closing, cancel := context.WithCancel(context.Background())
			cancel()
			_ = first.Close(closing) // the bus is closed; Close only ends the goroutines

			for _, file := range blocks(t, dir) {
				raw, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, damage(raw), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			b = open()
			var log bytes.Buffer
			l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			d = ensure(t, l, "plan")
			there := keys(t, d)
			if there == 0 || there >= changes {
				t.Errorf("the document opens with %d of %d changes", there, changes)
			}
			t.Logf("%d of %d changes are left", there, changes)
			if err := d.Submit(t.Context(), "mars", copied, true); err != nil {
				t.Fatal(err)
			}
			if n := keys(t, d); n != changes {
				t.Errorf("with the copy there are %d of %d changes", n, changes)
			}
			if err := d.Edit(t.Context(), set("after", 1)); err != nil {
				t.Fatal(err)
			}
			closeLibrary(t, l)
			// A truncated log cannot be distinguished from a shorter one.
			if notified := strings.Contains(log.String(), "changes of a document are lost"); notified != strings.Contains(name, "flipped") {
				t.Errorf("the log output is:\n%s", log.String())
			}
			l = openLibrary(t, b)
			if n := keys(t, ensure(t, l, "plan")); n != changes+1 {
				t.Errorf("after another start there are %d of %d changes", n, changes+1)
			}
			closeLibrary(t, l)
			end(b)
		})
	}
}

// flip flips two bits in the first change after an offset: the store corrects a single one when it opens.
func flip(b []byte, place int) {
	at := place + bytes.Index(b[place:], []byte("xxxx"))
	b[at] ^= 4
	b[at+1] ^= 4
}

// keys counts the keys of a document's map and verifies that they are the first ones.
func keys(t *testing.T, d *documents.Document) int {
	t.Helper()
	var doc struct{ M map[string]any }
	if err := json.Unmarshal([]byte(show(t, d)), &doc); err != nil {
		t.Fatal(err)
	}
	for i := range doc.M {
		var n int
		if _, err := fmt.Sscanf(i, "k%d", &n); err == nil && n >= len(doc.M) {
			t.Errorf("the map has %d keys, among them %s", len(doc.M), i)
		}
	}
	return len(doc.M)
}

// Opening a log from a backup that ends before the newest snapshot is logged; later changes survive a kill.
func TestALogThatEndsBeforeItsSnapshot(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	const changes = 20
	d := ensure(t, l, "plan")
	for i := range changes {
		if err := d.Edit(t.Context(), set(fmt.Sprintf("k%02d", i), 1)); err != nil {
			t.Fatal(err)
		}
	}
	closeLibrary(t, l) // Close stores a snapshot
	js := b.JetStream()
	stream, err := js.Stream(t.Context(), "hub_CRDT")
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), "hub_CRDT"); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), stream.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	l, err = documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	d = ensure(t, l, "plan")
	if n := keys(t, d); n != changes {
		t.Errorf("the document opens with %d of %d changes", n, changes)
	}
	if err := d.Edit(t.Context(), set("after", 1)); err != nil {
		t.Fatal(err)
	}
	another := openLibrary(t, b) // as after a kill: the first is not closed
	if n := keys(t, ensure(t, another, "plan")); n != changes+1 {
		t.Errorf("after another start there are %d of %d changes", n, changes+1)
	}
	closeLibrary(t, another)
	closing, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.Close(closing) // another library has the document; Close only ends the goroutines
	if !strings.Contains(log.String(), "ends before a snapshot") {
		t.Errorf("the log output is:\n%s", log.String())
	}
}
