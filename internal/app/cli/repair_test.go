//go:build unix

package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/bus/damage"
)

// A hub with a damaged task starts, says what is damaged, and serves the rest; a repair settles it.
func TestRepair(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	want(t, p.run(t, "repair"), 0, "The store has no damage.")
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.run(t, "send", "words", "unharmed"), 0, "unharmed")
	want(t, p.run(t, "send", "words", "wounded"), 0, "wounded")
	want(t, p.run(t, "stop"), 0, "has stopped")
	wound(t, p.dir, "PARLEY_HUB_local", "wounded")

	survey := decode[bus.Repair](t, p.run(t, "repair", "--format", "json"))
	if survey.Applied || survey.Lost == 0 || survey.Records[0].Action != damage.ActionFound {
		t.Errorf("the survey is %+v", survey)
	}
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.run(t, "tasks"), 0, "unharmed")
	want(t, p.run(t, "status"), 0, "lost")
	if o := p.run(t, "doctor"); !strings.Contains(o.stdout, "has damage: ") {
		t.Errorf("doctor: %+v", o)
	}
	want(t, p.run(t, "repair"), 0, "set aside")
	if o := p.run(t, "repair", "--apply"); o.code != 1 || !strings.Contains(o.stderr, "stop it first") {
		t.Errorf("a repair beside the hub: %+v", o)
	}
	want(t, p.run(t, "stop"), 0, "has stopped")
	want(t, p.run(t, "repair", "--apply"), 0, "lost")
	want(t, p.run(t, "repair"), 0, "The store has no damage.")
}

// A repair rebuilds a document whose head is damaged, after a dry run that says so.
func TestRepairRebuildsDocuments(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.run(t, "doc", "edit", "plan", "--set", "m.k=7"), 0, `"k": 7`)
	want(t, p.run(t, "stop"), 0, "has stopped")
	wound(t, p.dir, "KV_local_crdt_head", `{"epoch"`)
	want(t, p.run(t, "repair"), 0, "to be rebuilt")
	want(t, p.run(t, "repair", "--apply"), 0, "The document plan was rebuilt from its snapshot")
	want(t, p.run(t, "repair"), 0, "The store has no damage.")
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.run(t, "doc", "list"), 0, "plan")
	want(t, p.run(t, "doc", "show", "plan"), 0, `"k": 7`)
}

// wound flips two bits of each occurrence of a text in a stream of the hub.
func wound(t *testing.T, dataDir, stream, text string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dataDir, "bus", "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the blocks are %v, %v", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for at := bytes.Index(raw, []byte(text)); at >= 0; at = bytes.Index(raw, []byte(text)) {
		raw[at] ^= 1
		raw[at+1] ^= 1
	}
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
