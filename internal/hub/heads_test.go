package hub

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// newHeadsStore returns a store with a file of heads.
func newHeadsStore(t *testing.T) (*bus.Bus, *jetStream) {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b, openHeadsStore(t, b, t.TempDir())
}

func openHeadsStore(t *testing.T, b *bus.Bus, dir string) *jetStream {
	t.Helper()
	s, err := openJetStream(t.Context(), b, "local", 0)
	if err != nil {
		t.Fatal(err)
	}
	s.headsDir = dir
	return s
}

// loaded returns the heads that a start gets.
func loaded(t *testing.T, s *jetStream) (heads []head) {
	t.Helper()
	x := newIndex()
	err := s.load(t.Context(), func(indexed *index) { x = indexed }, func(h head) { x.add(h) }, func(string, string, []byte) {}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	if _, total := x.totals(); total != len(entries(x)) {
		t.Errorf("the index counts %d tasks and has %d", total, len(entries(x)))
	}
	return entries(x)
}

// entries returns the tasks of an index.
func entries(x *index) (all []head) {
	for e := range x.order.from(0) {
		h := e.head()
		h.Spent = e.spent
		all = append(all, h)
	}
	return all
}

func put(t *testing.T, s *jetStream, id string, at int64) {
	t.Helper()
	h := head{ID: a2a.TaskID(id), Agent: "a", Context: "c", State: a2a.TaskStateCompleted, Created: 1, Updated: at, Spent: spent{project: "/p", ms: uint32(at)}}
	if err := s.putTask(t.Context(), h, []byte("body")); err != nil {
		t.Fatal(err)
	}
}

// writeHeads writes the file, as the hub does now and then.
func writeHeads(t *testing.T, s *jetStream) {
	t.Helper()
	f, err := s.currentHeads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.unsaved.Store(f)
	if err := s.saveHeads(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Whatever has happened since the file was written, a start gets what the stream has.
func TestAStartWithTheFileOfHeadsGetsWhatTheStreamHas(t *testing.T) {
	b, s := newHeadsStore(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	used := 0
	for step := range int64(400) {
		id := fmt.Sprint("task-", random.IntN(40))
		switch n := random.IntN(20); {
		case n < 14:
			put(t, s, id, step+1)
		case n < 16:
			if err := s.deleteTask(t.Context(), a2a.TaskID(id)); err != nil {
				t.Fatal(err)
			}
		case n < 18:
			writeHeads(t, s)
		default:
			if _, err := os.Stat(s.headsPath()); err == nil {
				used++
			}
			ahead := openHeadsStore(t, b, s.headsDir)
			ahead.ahead = ReadHeads(s.headsDir)
			read := openHeadsStore(t, b, s.headsDir)
			want := loaded(t, openHeadsStore(t, b, ""))
			for _, s := range []*jetStream{ahead, read} {
				if d := cmp.Diff(want, loaded(t, s), cmp.AllowUnexported(spent{})); d != "" {
					t.Fatalf("seed %d, step %d: %s", seed, step, d)
				}
			}
		}
	}
	if used == 0 {
		t.Errorf("seed %d: there never was a file", seed)
	}
}

// What was read ahead lacks nothing: tasks that a kill has interrupted, bodies in pieces, and heads that cannot be read, which are named once.
func TestWhatIsReadAheadLacksNothing(t *testing.T) {
	b, s := newHeadsStore(t)
	s.piece = 10
	tasks := map[string]head{}
	for i, id := range []string{"ended", "live", "large", "live-again", "flawed", "flawed-no-more"} {
		h := head{ID: a2a.TaskID(id), Agent: "a", Context: "c", State: a2a.TaskStateWorking, Created: 1, Updated: int64(i + 1), Live: strings.HasPrefix(id, "live")}
		body := []byte("body")
		if id == "large" {
			body = bytes.Repeat(body, 9)
		}
		if err := s.putTask(t.Context(), h, body); err != nil {
			t.Fatal(err)
		}
		tasks[id] = h
	}
	writeHeads(t, s)
	f, err := readHeads(s.headsPath())
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range f.heads {
		if strings.HasPrefix(h.id, "flawed") {
			f.heads[i].head = "?"
		}
	}
	if err := f.write(s.headsPath()); err != nil {
		t.Fatal(err)
	}
	put(t, s, "live-again", 9)
	put(t, s, "flawed-no-more", 10)

	ahead := openHeadsStore(t, b, s.headsDir)
	ahead.ahead = ReadHeads(s.headsDir)
	var x *index
	live, flaws := map[a2a.TaskID]bool{}, 0
	err = ahead.load(t.Context(), func(indexed *index) { x = indexed }, func(h head) {
		x.add(h)
		live[h.ID] = h.Live
	}, func(string, string, []byte) {}, func(error) { flaws++ })
	if err != nil {
		t.Fatal(err)
	}
	if !live["live"] || live["live-again"] || flaws != 1 {
		t.Errorf("live are %v, flaws %d", live, flaws)
	}
	if _, total := x.totals(); total != len(tasks)-1 {
		t.Errorf("there are %d tasks", total)
	}
	if err := ahead.putTask(t.Context(), tasks["large"], []byte("small")); err != nil {
		t.Fatal(err)
	}
	if info, err := ahead.state.Info(t.Context()); err != nil || info.State.Msgs != uint64(len(tasks)) { // no pieces are left
		t.Errorf("the stream has %+v, %v", info.State, err)
	}
}

// marked replaces the file by one whose heads can be told from those of the stream.
func marked(t *testing.T, s *jetStream) {
	t.Helper()
	f, err := readHeads(s.headsPath())
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range f.heads {
		f.heads[i].head = string(bytes.Replace([]byte(h.head), []byte(" a "), []byte(" marked "), 1))
	}
	if err := f.write(s.headsPath()); err != nil {
		t.Fatal(err)
	}
}

func TestTheFileOfHeadsIsUsedAsLongAsItFits(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, s *jetStream)
		used   bool
	}{
		"nothing has changed":   {func(*testing.T, *jetStream) {}, true},
		"a task was added":      {func(t *testing.T, s *jetStream) { put(t, s, "new", 9) }, true},
		"a task was changed":    {func(t *testing.T, s *jetStream) { put(t, s, "two", 9) }, true},
		"a task was removed":    {func(t *testing.T, s *jetStream) { remove(t, s, "two") }, false},
		"one came and one went": {func(t *testing.T, s *jetStream) { put(t, s, "new", 9); remove(t, s, "two") }, false},
		"a bit was flipped": {func(t *testing.T, s *jetStream) {
			data, err := os.ReadFile(s.headsPath())
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := os.WriteFile(s.headsPath(), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}, false},
		"its end is missing": {func(t *testing.T, s *jetStream) {
			if err := os.Truncate(s.headsPath(), 50); err != nil {
				t.Fatal(err)
			}
		}, false},
		"it is newer than the stream": {func(t *testing.T, s *jetStream) {
			f, err := readHeads(s.headsPath())
			if err != nil {
				t.Fatal(err)
			}
			f.last++
			if err := f.write(s.headsPath()); err != nil {
				t.Fatal(err)
			}
		}, false},
		"it is of another stream": {func(t *testing.T, s *jetStream) {
			if err := s.bus.JetStream().DeleteStream(t.Context(), "PARLEY_HUB_local"); err != nil {
				t.Fatal(err)
			}
			fresh := openHeadsStore(t, s.bus, "")
			for _, id := range []string{"one", "two", "three", "four"} {
				put(t, fresh, id, 5)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, s := newHeadsStore(t)
			for i, id := range []string{"one", "two", "three"} {
				put(t, s, id, int64(i+1))
			}
			writeHeads(t, s)
			marked(t, s)
			tt.change(t, s)
			got := loaded(t, openHeadsStore(t, b, s.headsDir))
			if used := got[0].Agent == "marked"; used != tt.used {
				t.Errorf("used: %v, heads %+v", used, got)
			}
			if _, err := os.Stat(s.headsPath()); (err == nil) != tt.used { // it must not fit again later
				t.Errorf("the file: %v", err)
			}
		})
	}
}

// A stream on another server that loses its end in a power cut, while the hub goes on, grows until the file could fit it.
func TestTheFileOfHeadsIsRemovedWhenTheStreamHasLostItsEnd(t *testing.T) {
	b, s := newHeadsStore(t)
	for i, id := range []string{"one", "two", "three"} {
		put(t, s, id, int64(i+1))
	}
	f, err := s.currentHeads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"lost", "gone"} {
		f.heads = append(f.heads, storedHead{id, f.heads[0].head, ""})
		f.last++
	}
	s.unsaved.Store(f)
	if err := s.saveHeads(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"new", "newer", "one"} { // as many tasks again, and one change that is newer than the file
		put(t, s, id, int64(i+10))
	}
	got, want := loaded(t, openHeadsStore(t, b, s.headsDir)), loaded(t, openHeadsStore(t, b, ""))
	if d := cmp.Diff(want, got, cmp.AllowUnexported(spent{})); d != "" {
		t.Error(d)
	}
}

// What is written is no sign of a lost end as long as its sequences rise, also after a start with the file.
func TestTheFileOfHeadsStaysWhileTheStreamGrows(t *testing.T) {
	b, s := newHeadsStore(t)
	put(t, s, "one", 1)
	writeHeads(t, s)
	put(t, s, "two", 2)
	s = openHeadsStore(t, b, s.headsDir)
	loaded(t, s)
	put(t, s, "three", 3)
	if err := s.putRecord(t.Context(), "kind", "key", nil); err != nil {
		t.Fatal(err)
	}
	if s.inFile.Load() != 2 {
		t.Errorf("the stream of the file had at least %d messages", s.inFile.Load())
	}
	if _, err := os.Stat(s.headsPath()); err != nil {
		t.Error(err)
	}
}

func remove(t *testing.T, s *jetStream, id string) {
	t.Helper()
	if err := s.deleteTask(t.Context(), a2a.TaskID(id)); err != nil {
		t.Fatal(err)
	}
}

// A message that the server cannot read any more is not in the file, and its task in no list.
func TestTheFileOfHeadsDoesNotHideALostTask(t *testing.T) {
	b, s := newHeadsStore(t)
	for i, id := range []string{"one", "two", "three"} {
		put(t, s, id, int64(i+1))
	}
	writeHeads(t, s)
	stream, err := s.bus.JetStream().Stream(t.Context(), "PARLEY_HUB_local")
	if err != nil {
		t.Fatal(err)
	}
	var m *jetstream.RawStreamMsg
	if m, err = stream.GetLastMsgForSubject(t.Context(), s.prefix+"task.two"); err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), m.Sequence); err != nil {
		t.Fatal(err)
	}
	if got := loaded(t, openHeadsStore(t, b, s.headsDir)); len(got) != 2 {
		t.Errorf("heads %+v", got)
	}
}
