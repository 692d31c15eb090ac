package documents_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
)

// edit sets some keys of a document, each with an edit of its own.
func edit(t *testing.T, d *documents.Document, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := d.Edit(t.Context(), set(fmt.Sprintf("k%02d", i), i)); err != nil {
			t.Fatal(err)
		}
	}
}

// abandon ends a library without snapshots, as a kill does.
func abandon(l *documents.Library) {
	closing, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.Close(closing)
}

func purgeHead(t *testing.T, b *bus.Bus, name string) {
	t.Helper()
	heads, err := b.JetStream().KeyValue(t.Context(), "hub_crdt_head")
	if err != nil {
		t.Fatal(err)
	}
	if err := heads.Purge(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// histories brings a document into states in which different things are needed to rebuild its head. Each ends with a
// library that is not closed.
var histories = map[string]func(t *testing.T, b *bus.Bus) *documents.Library{
	"log only": func(t *testing.T, b *bus.Bus) *documents.Library {
		l := openLibrary(t, b)
		edit(t, ensure(t, l, "plan"), 0, 12)
		return l
	},
	"snapshots and log": func(t *testing.T, b *bus.Bus) *documents.Library {
		for i := range 3 {
			l := openLibrary(t, b)
			edit(t, ensure(t, l, "plan"), 3*i, 3*i+3)
			closeLibrary(t, l) // Close stores a snapshot
		}
		l := openLibrary(t, b)
		edit(t, ensure(t, l, "plan"), 9, 12)
		return l
	},
	"a new epoch": func(t *testing.T, b *bus.Bus) *documents.Library {
		l := openLibrary(t, b)
		edit(t, ensure(t, l, "plan"), 0, 8)
		if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
			t.Fatal(err)
		}
		edit(t, ensure(t, l, "plan"), 8, 12)
		return l
	},
}

// A document whose head is lost is rebuilt from its snapshots and its log, and is listed again.
func TestADocumentWithoutItsHeadIsRebuilt(t *testing.T) {
	for name, history := range histories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			l := history(t, b)
			before := show(t, ensure(t, l, "plan"))
			abandon(l)
			purgeHead(t, b, "plan")

			var log bytes.Buffer
			l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			d := ensure(t, l, "plan")
			if after := show(t, d); after != before {
				t.Errorf("the document was %s and is %s", before, after)
			}
			edit(t, d, 12, 14)
			closeLibrary(t, l)
			if !strings.Contains(log.String(), "the head of a document was lost") {
				t.Errorf("the log is %s", log.String())
			}
			l = openLibrary(t, b)
			if n := keys(t, ensure(t, l, "plan")); n != 14 {
				t.Errorf("after another start there are %d keys", n)
			}
			closeLibrary(t, l)
		})
	}
}

// A library rebuilds all lost heads by itself, so that the documents are listed.
func TestLostHeadsAreRebuiltInTheBackground(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	for _, name := range []string{"plan", "parley-1234=notes"} {
		edit(t, ensure(t, l, name), 0, 3)
	}
	closeLibrary(t, l)
	purgeHead(t, b, "plan")
	purgeHead(t, b, "parley-1234=notes")
	l = openLibrary(t, b)
	rebuilt, err := l.Rebuilt(t.Context())
	if err != nil || len(rebuilt) != 2 || rebuilt[0].Document != "parley-1234=notes" || !strings.Contains(rebuilt[1].From, "its snapshot of change 3") {
		t.Errorf("rebuilt: %+v, %v", rebuilt, err)
	}
	names, err := l.Documents(t.Context())
	if err != nil || !slices.Equal(names, []string{"parley-1234=notes", "plan"}) {
		t.Errorf("the documents are %v, %v", names, err)
	}
	closeLibrary(t, l)
}

// A document of which nothing can be made is an error that says so, and never a new document.
func TestADocumentBeyondRepairIsNotBegunAnew(t *testing.T) {
	b := openBus(t)
	abandon(histories["a new epoch"](t, b))
	purgeHead(t, b, "plan")
	parts, err := b.JetStream().Stream(t.Context(), "hub_CRDT_SNAP")
	if err != nil {
		t.Fatal(err)
	}
	if err := parts.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := openLibrary(t, b)
	defer closeLibrary(t, l)
	for _, open := range []func(context.Context, string) (*documents.Document, error){l.Get, l.Ensure} {
		if _, err := open(t.Context(), "plan"); documents.CodeOf(err) != documents.CodeDamaged {
			t.Errorf("the error is %v", err)
		}
	}
	rebuilt, err := l.Rebuilt(t.Context())
	if err != nil || len(rebuilt) != 1 || rebuilt[0].Reason == "" {
		t.Errorf("rebuilt: %+v, %v", rebuilt, err)
	}
}

// The snapshot that begins an epoch has a second copy, which is used when the first is damaged.
func TestAnEpochsFirstSnapshotHasACopy(t *testing.T) {
	b := openBus(t)
	l := histories["a new epoch"](t, b)
	before := show(t, ensure(t, l, "plan"))
	abandon(l)
	parts, err := b.JetStream().Stream(t.Context(), "hub_CRDT_SNAP")
	if err != nil {
		t.Fatal(err)
	}
	info, err := parts.Info(t.Context(), jetstream.WithSubjectFilter("hub.crdtsnap.plan.>"))
	if err != nil {
		t.Fatal(err)
	}
	purged := 0
	for subject := range info.State.Subjects {
		if strings.Contains(subject, ".1-0-") && !strings.HasSuffix(subject, "-copy") {
			purged++
			if err := parts.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if purged != 1 {
		t.Fatalf("the snapshots are %v", info.State.Subjects)
	}
	l = openLibrary(t, b)
	if after := show(t, ensure(t, l, "plan")); after != before {
		t.Errorf("the document was %s and is %s", before, after)
	}
	closeLibrary(t, l)
}

// sharedLog is a log that is read while it is written.
type sharedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var (
	flips    = flag.Int("flips", 3, "stores in which records are damaged")
	flipSeed = flag.Uint64("flip-seed", 0, "seed of the damage; 0 takes a new one")
)

// Whatever record of heads, snapshots and logs is damaged: each document is as it was last acknowledged, or the
// damage is named.
func TestDamagedDocumentsAreWholeOrNamed(t *testing.T) {
	seed := *flipSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-flips=%d -flip-seed=%d", *flips, seed)
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range histories {
			if !yield(name) {
				return
			}
		}
	})
	whole, named := 0, 0
	// Each history is made once and copied: every start and every stream waits for a sync of the whole disk.
	type made struct{ dir, before string }
	storeOf := func(name string) made {
		dir := t.TempDir()
		b := reopenBus(t, dir)
		l := histories[name](t, b)
		before := show(t, ensure(t, l, "plan"))
		endBus(t, b)
		abandon(l)
		return made{dir, before}
	}
	stores := map[string]made{}
	for i := range *flips {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		name := names[i%len(names)]
		if _, ok := stores[name]; !ok {
			stores[name] = storeOf(name)
		}
		before, dir := stores[name].before, filepath.Join(t.TempDir(), "data")
		if err := os.CopyFS(dir, os.DirFS(stores[name].dir)); err != nil {
			t.Fatal(err)
		}
		where := damageOne(t, dir, random)
		t.Logf("trial %d: %s", i, where)

		b := reopenBus(t, dir)
		var log sharedLog // the library writes while the test reads
		l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		d, err := l.Ensure(t.Context(), "plan")
		switch {
		case err == nil && show(t, d) == before:
			whole++
		case len(b.Damage()) == 0, err != nil && documents.CodeOf(err) != documents.CodeDamaged:
			t.Errorf("trial %d: %s: the damage is not named, or hides the document: %v\n%s", i, where, err, log.String())
		case err == nil && !strings.Contains(log.String(), "changes of a document are lost"):
			// Only the end of the log can be missing without a gap; the ledger has it.
			named++
			if !slices.ContainsFunc(documentsDamage(b), func(s string) bool { return s == "hub_CRDT" }) {
				t.Errorf("trial %d: %s: the document was %s and is %s\n%s", i, where, before, show(t, d), log.String())
			}
		default:
			named++
		}
		closeLibrary(t, l)
		endBus(t, b)
	}
	t.Logf("%d whole, %d named", whole, named)
}

// documentsDamage returns the streams of all lost records.
func documentsDamage(b *bus.Bus) (streams []string) {
	for _, r := range b.Damage() {
		if r.Lost() {
			streams = append(streams, r.Stream)
		}
	}
	return streams
}

func reopenBus(t *testing.T, dir string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func endBus(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// damageOne changes two bytes next to each other somewhere in the files of heads, snapshots or logs.
func damageOne(t *testing.T, dir string, random *rand.Rand) string {
	t.Helper()
	streams := []string{"KV_hub_crdt_head", "hub_CRDT", "hub_CRDT_SNAP"}
	for range 100 {
		stream := streams[random.IntN(len(streams))]
		files, err := filepath.Glob(filepath.Join(dir, "bus", "jetstream", "*", "streams", stream, "msgs", "*.blk"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(raw) < 2 {
				continue
			}
			at := random.IntN(len(raw) - 1)
			raw[at] ^= byte(1 + random.IntN(255))
			raw[at+1] ^= byte(1 + random.IntN(255))
			if err := os.WriteFile(file, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("byte %d of %d of %s", at, len(raw), file)
		}
	}
	t.Fatal("there is nothing to damage")
	return ""
}
