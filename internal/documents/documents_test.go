package documents_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) {
	nettest.HubMain()
	goleak.VerifyTestMain(m)
}

func openBus(t *testing.T) *bus.Bus {
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
	return b
}

func openLibrary(t *testing.T, b *bus.Bus) *documents.Library {
	t.Helper()
	l, err := documents.Open(t.Context(), documents.Options{Bus: b, Name: "hub"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func ensure(t *testing.T, l *documents.Library, name string) *documents.Document {
	t.Helper()
	d, err := l.Ensure(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func closeLibrary(t *testing.T, l *documents.Library) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func show(t *testing.T, d *documents.Document) string {
	t.Helper()
	var b []byte
	var err error
	if e := d.View(t.Context(), func(doc *crdt.Doc) { b, err = doc.JSON() }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return string(b)
}

func set(key string, value any) func(*crdt.Doc) error {
	return func(d *crdt.Doc) error { return d.Map("m").Set(key, value) }
}

// An acknowledged change survives a kill of the process.
func TestAcknowledgedChangesSurviveAKill(t *testing.T) {
	b := openBus(t)
	first := openLibrary(t, b)
	d := ensure(t, first, "plan")
	for i := range 30 {
		if err := d.Edit(t.Context(), set(fmt.Sprint(i%3), i)); err != nil {
			t.Fatal(err)
		}
	}
	want := show(t, d)
	// The second library opens the stored document while the first is still open, as after a kill.
	second := openLibrary(t, b)
	got, err := second.Get(t.Context(), "plan")
	if err != nil {
		t.Fatal(err)
	}
	if s := show(t, got); s != want {
		t.Errorf("the content is %s, want %s", s, want)
	}
	closeLibrary(t, second)
	if err := first.Close(context.Background()); err == nil {
		t.Error("the first library took a snapshot although the other library wrote the head")
	}
}

// A library that must close at once leaves out the snapshots, and loses nothing.
func TestALibraryClosesWithoutTimeForSnapshots(t *testing.T) {
	b := openBus(t)
	first := openLibrary(t, b)
	want := map[string]string{}
	for i := range 12 {
		name := fmt.Sprint("plan-", i)
		d := ensure(t, first, name)
		if err := d.Edit(t.Context(), set("k", i)); err != nil {
			t.Fatal(err)
		}
		want[name] = show(t, d)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if err := first.Close(ended); err != nil {
		t.Errorf("what is stored is not closed: %v", err)
	}
	second := openLibrary(t, b)
	defer closeLibrary(t, second)
	for name, content := range want {
		if got := show(t, ensure(t, second, name)); got != content {
			t.Errorf("%s is %s, want %s", name, got, content)
		}
	}
}

// The log is purged only behind verified snapshots, and the previous snapshot suffices to restore the document.
func TestSnapshotsAndTheLogBehindThem(t *testing.T) {
	b := openBus(t)
	want := ""
	for round := range 4 {
		l := openLibrary(t, b)
		d := ensure(t, l, "plan")
		if got := show(t, d); round > 0 && got != want {
			t.Fatalf("round %d: the content is %s, want %s", round, got, want)
		}
		for i := range 20 {
			if err := d.Edit(t.Context(), set("k", 100*round+i)); err != nil {
				t.Fatal(err)
			}
		}
		want = show(t, d)
		closeLibrary(t, l)
	}
	stream, err := b.JetStream().Stream(t.Context(), "hub_CRDT")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	if n := info.State.Msgs; n != 20 {
		t.Errorf("the log has %d changes; 20 follow the previous snapshot", n)
	}
	snapshots, err := b.JetStream().Stream(t.Context(), "hub_CRDT_SNAP")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := snapshots.Info(t.Context()); err != nil || info.State.NumSubjects != 2 {
		t.Fatalf("there are %d snapshots, %v", info.State.NumSubjects, err)
	}
	// When the newest snapshot is lost, the previous one and the log lead to the same state.
	heads, err := b.JetStream().KeyValue(t.Context(), "hub_crdt_head")
	if err != nil {
		t.Fatal(err)
	}
	entry, err := heads.Get(t.Context(), "plan")
	if err != nil {
		t.Fatal(err)
	}
	var head struct{ Object string }
	if err := json.Unmarshal(entry.Value(), &head); err != nil {
		t.Fatal(err)
	}
	if err := snapshots.Purge(t.Context(), jetstream.WithPurgeSubject("hub.crdtsnap."+head.Object)); err != nil {
		t.Fatal(err)
	}
	l := openLibrary(t, b)
	if got := show(t, ensure(t, l, "plan")); got != want {
		t.Errorf("from the previous snapshot the content is %s, want %s", got, want)
	}
	closeLibrary(t, l)
	// The head refers to an existing snapshot again: another one, or the lost one stored anew.
	if entry, err = heads.Get(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(entry.Value(), &head); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshots.GetLastMsgForSubject(t.Context(), "hub.crdtsnap."+head.Object); err != nil {
		t.Errorf("the broken head was not repaired: %v", err)
	}
}

// A snapshot that differs from the stored one is not loaded: the document is read from its log.
func TestABrokenSnapshotIsNotLoaded(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	if err := ensure(t, l, "plan").Edit(t.Context(), set("k", 1)); err != nil {
		t.Fatal(err)
	}
	closeLibrary(t, l)
	snapshots, err := b.JetStream().Stream(t.Context(), "hub_CRDT_SNAP")
	if err != nil {
		t.Fatal(err)
	}
	m, err := snapshots.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshots.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Data[0] ^= 1
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
		t.Fatal(err)
	}
	l = openLibrary(t, b)
	defer closeLibrary(t, l)
	if got := show(t, ensure(t, l, "plan")); got != `{"m":{"k":1}}` {
		t.Errorf("the document is %s", got)
	}
}

// Many changes lead to snapshots while the document is open.
func TestManyChanges(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	d := ensure(t, l, "plan")
	large := strings.Repeat("x", 200<<10) // so that the snapshot has several parts
	for i := range 2500 {
		if err := d.Replica.Edit(t.Context(), func(doc *crdt.Doc) error {
			if i%400 == 0 {
				return doc.Map("m").Set(fmt.Sprint(i), large)
			}
			return doc.Array("l").Insert(0, 1)
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Durable(t.Context()); err != nil {
		t.Fatal(err)
	}
	closeLibrary(t, l)
	l = openLibrary(t, b)
	defer closeLibrary(t, l)
	d, err := l.Get(t.Context(), "plan")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.View(t.Context(), func(doc *crdt.Doc) {
		if n := doc.Array("l").Len(); n != 2493 {
			t.Errorf("the list has %d elements", n)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

func TestNamesAndLookUps(t *testing.T) {
	l := openLibrary(t, openBus(t))
	for _, name := range []string{"", "a b", "a.b", "../x", "-x", strings.Repeat("x", 65), "*", ">"} {
		if _, err := l.Ensure(t.Context(), name); documents.CodeOf(err) != documents.CodeInvalid {
			t.Errorf("the name %q gives %v", name, err)
		}
	}
	if _, err := l.Get(t.Context(), "none"); documents.CodeOf(err) != documents.CodeNotFound {
		t.Errorf("a missing document returns %v", err)
	}
	ensure(t, l, "b")
	ensure(t, l, "a")
	if names, err := l.Documents(t.Context()); err != nil || fmt.Sprint(names) != "[a b]" {
		t.Errorf("the names are %v, %v", names, err)
	}
	closeLibrary(t, l)
	if _, err := l.Get(t.Context(), "a"); documents.CodeOf(err) != documents.CodeClosed {
		t.Errorf("a closed library returns %v", err)
	}
}

// A list that is interrupted is an error, not a part of the list.
func TestAnInterruptedListOfDocumentsIsAnError(t *testing.T) {
	l := openLibrary(t, openBus(t))
	const all = 20
	for i := range all {
		ensure(t, l, fmt.Sprint("d", i))
	}
	interrupted := 0
	for i := range 400 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i)*5*time.Microsecond, cancel)
		names, err := l.Documents(ctx)
		switch {
		case err == nil && len(names) != all:
			t.Fatalf("%d of %d names", len(names), all)
		case err != nil && !errors.Is(err, context.Canceled):
			t.Fatal(err)
		case err != nil:
			interrupted++
		}
		cancel()
	}
	if interrupted == 0 {
		t.Error("no list was interrupted")
	}
	closeLibrary(t, l)
}

// A new epoch has the content without the history, in the store as well. Holders of the former epoch must open the
// document again, and the former epoch's log is purged.
func TestCompaction(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	old := ensure(t, l, "plan")
	if err := old.Edit(t.Context(), func(doc *crdt.Doc) error {
		in, err := doc.Map("m").SetArray("l")
		if err != nil {
			return err
		}
		if err := in.Append(1, "x", []byte{1}); err != nil {
			return err
		}
		if err := doc.Text("t").InsertWith(0, "bold", crdt.Attributes{"b": true}); err != nil {
			return err
		}
		return doc.Text("t").InsertEmbed(4, map[string]any{"i": 1}, nil)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		if err := old.Replica.Edit(t.Context(), set(fmt.Sprint(i%2), i)); err != nil {
			t.Fatal(err)
		}
	}
	want := show(t, old)
	before, after, err := l.Compact(t.Context(), "plan")
	if err != nil || before < 200 || after > 10 {
		t.Fatalf("the new epoch has %[2]d items, the former had %[1]d: %[3]v", before, after, err)
	}
	now := ensure(t, l, "plan")
	if got := show(t, now); got != want || now.Epoch() != 1 {
		t.Errorf("in epoch %d the content is %s, want %s", now.Epoch(), got, want)
	}
	if err := now.View(t.Context(), func(doc *crdt.Doc) {
		runs := doc.Text("t").Runs()
		if len(runs) != 2 || runs[0].Attributes["b"] != true {
			t.Errorf("the text is %v", runs)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := old.Edit(t.Context(), set("late", 1)); documents.CodeOf(err) != documents.CodeClosed {
		t.Errorf("an edit of the old epoch returns %v", err)
	}
	for round := range 3 {
		if err := ensure(t, l, "plan").Edit(t.Context(), set("round", round)); err != nil {
			t.Fatal(err)
		}
		want = show(t, ensure(t, l, "plan"))
		closeLibrary(t, l)
		l = openLibrary(t, b)
	}
	defer closeLibrary(t, l)
	if got := show(t, ensure(t, l, "plan")); got != want {
		t.Errorf("after restarts the content is %s, want %s", got, want)
	}
	stream, err := b.JetStream().Stream(t.Context(), "hub_CRDT")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("hub.crdt.plan.0.log"))
	if err != nil || len(info.State.Subjects) != 0 {
		t.Errorf("the log of the old epoch has %v, %v", info.State.Subjects, err)
	}
}

// Compaction keeps content of kinds that have no type in the engine.
func TestCompactionOfOpaqueContent(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	d := ensure(t, l, "plan")
	xml := []byte{1, 1, 1, 0, 7, 1, 1, 'x', 3, 1, 'p', 0}
	if err := d.Submit(t.Context(), "browser", xml, false); err != nil {
		t.Fatal(err)
	}
	if _, after, err := l.Compact(t.Context(), "plan"); err != nil || after != 1 {
		t.Errorf("%d items are left, %v", after, err)
	}
	d = ensure(t, l, "plan")
	if s, err := d.Status(t.Context()); err != nil || s.Items != 1 || s.Epoch != 1 {
		t.Errorf("after compaction the status is %+v, %v", s, err)
	}
	if err := d.Edit(t.Context(), set("k", 1)); err != nil {
		t.Error(err)
	}
}

// Wait returns with the next change, not earlier.
func TestWait(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	d := ensure(t, l, "plan")
	if err := d.Change(t.Context(), []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: 1}}); err != nil {
		t.Fatal(err)
	}
	first, err := d.Content(t.Context())
	if err != nil || string(first.Content) != `{"m":{"k":1}}` || first.Name != "plan" || first.Version == "" {
		t.Fatalf("the first content is %+v, %v", first, err)
	}
	got := make(chan documents.Content)
	go func() {
		c, err := d.Wait(t.Context(), first.Version)
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	if err := d.Change(t.Context(), []documents.Edit{{Op: documents.OpDelete, Path: []string{"m", "k"}}}); err != nil {
		t.Fatal(err)
	}
	c := <-got
	if string(c.Content) != `{"m":{}}` || c.Version == first.Version {
		t.Errorf("after the change the content is %+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Wait(ctx, c.Version); err == nil {
		t.Error("a cancelled Wait returns no error")
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct{ name, edits, want string }{
		{"set", `[{"op":"set","path":["m","k"],"value":{"a":[1]}}]`, `{"m":{"k":{"a":[1]}}}`},
		{"set deep", `[{"op":"set","path":["m","a","b"],"value":1},{"op":"set","path":["m","a","c"],"value":2}]`, `{"m":{"a":{"b":1,"c":2}}}`},
		{"delete", `[{"op":"set","path":["m","k"],"value":1},{"op":"delete","path":["m","k"]}]`, `{"m":{}}`},
		{"insert", `[{"op":"insert","path":["l"],"values":[1,3]},{"op":"insert","path":["l"],"index":1,"values":[2]}]`, `{"l":[1,2,3]}`},
		{"delete elements", `[{"op":"insert","path":["l"],"values":[1,2,3]},{"op":"delete","path":["l"],"index":1}]`, `{"l":[1,3]}`},
		{"text", `[{"op":"text","path":["t"],"text":"hello"},{"op":"text","path":["t"],"index":0,"count":1,"text":"J"}]`, `{"t":"Jello"}`},
		{"text inside", `[{"op":"text","path":["m","t"],"text":"a"},{"op":"text","path":["m","t"],"text":"b"}]`, `{"m":{"t":"ab"}}`},
		{"make", `[{"op":"make","path":["m","l"],"type":"array"},{"op":"insert","path":["m","l"],"values":["x"]}]`, `{"m":{"l":["x"]}}`},
		{"make twice", `[{"op":"make","path":["m","x"],"type":"map"},{"op":"make","path":["m","x"],"type":"map"}]`, `{"m":{"x":{}}}`},
		{"no operation", `[{"op":"jump","path":["m"]}]`, ""},
		{"no path", `[{"op":"set","value":1}]`, ""},
		{"no key", `[{"op":"set","path":["m"],"value":1}]`, ""},
		{"an empty name", `[{"op":"set","path":["m",""],"value":1}]`, ""},
		{"no type", `[{"op":"make","path":["m"],"type":"tree"}]`, ""},
		{"another type", `[{"op":"set","path":["m","k"],"value":1},{"op":"insert","path":["m","k"],"values":[1]}]`, ""},
		{"through a value", `[{"op":"set","path":["m","k"],"value":1},{"op":"set","path":["m","k","x"],"value":1}]`, ""},
		{"outside", `[{"op":"insert","path":["l"],"index":5,"values":[1]}]`, ""},
		{"through a text", `[{"op":"text","path":["t"],"text":"x"},{"op":"set","path":["t","k"],"value":1}]`, ""},
		{"a map as a list", `[{"op":"set","path":["m","k"],"value":1},{"op":"insert","path":["m"],"values":[1]}]`, ""},
		{"an emptied text", `[{"op":"text","path":["t"],"text":"x"},{"op":"text","path":["t"],"index":0,"count":1},{"op":"text","path":["t"],"text":"y"}]`, `{"t":"y"}`},
		{"nothing", `[]`, ""},
		{"a set of values", `[{"op":"set","path":["m","k"],"values":[1]}]`, ""},
		{"a value to insert", `[{"op":"insert","path":["l"],"value":1}]`, ""},
		{"no values to insert", `[{"op":"insert","path":["l"]}]`, ""},
		{"elements without an index", `[{"op":"make","path":["m","l"],"type":"array"},{"op":"delete","path":["m","l"],"count":2}]`, ""},
		{"below nothing", `[{"op":"text","path":["t"],"index":-1,"text":"x"}]`, ""},
		{"fewer than none", `[{"op":"text","path":["t"],"text":"x"},{"op":"text","path":["t"],"index":0,"count":-1}]`, ""},
		{"elements of nothing", `[{"op":"delete","path":["m","l"],"index":0}]`, ""},
		{"nothing to delete", `[{"op":"set","path":["m","k"],"value":1},{"op":"delete","path":["n","k"]},{"op":"delete","path":["m","a","b"]}]`, `{"m":{"k":1}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var edits []documents.Edit
			if err := json.Unmarshal([]byte(c.edits), &edits); err != nil {
				t.Fatal(err)
			}
			d := crdt.New(crdt.Options{})
			err := documents.Apply(d, edits)
			if c.want == "" {
				if documents.CodeOf(err) != documents.CodeInvalid || d.Items() != 0 {
					t.Errorf("the error is %v, the document has %d items", err, d.Items())
				}
				return
			}
			if b, _ := d.JSON(); err != nil || string(b) != c.want {
				t.Errorf("the content is %s, %v, want %s", b, err, c.want)
			}
		})
	}
	d := crdt.New(crdt.Options{})
	if err := documents.Apply(d, []documents.Edit{{Op: documents.OpIncrement, Path: []string{"c"}, By: 2}, {Op: documents.OpIncrement, Path: []string{"c"}}}); err != nil || d.Counter("c").Value() != 3 {
		t.Errorf("the counter is %d, %v", d.Counter("c").Value(), err)
	}
}

// A worn document begins a new epoch by itself.
func TestAWornDocumentBeginsANewEpoch(t *testing.T) {
	l, err := documents.Open(t.Context(), documents.Options{Bus: openBus(t), Name: "hub", Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer closeLibrary(t, l)
	old := ensure(t, l, "plan")
	for i := range 26 {
		if err := old.Edit(t.Context(), func(doc *crdt.Doc) error {
			for k := range 2000 {
				if err := doc.Map("m").Set(fmt.Sprint(k%5), i*2000+k); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	const want = `{"m":{"0":51995,"1":51996,"2":51997,"3":51998,"4":51999}}`
	select {
	case <-old.Done():
	case <-time.After(time.Minute):
		t.Fatal("the epoch did not end")
	}
	now := ensure(t, l, "plan")
	for now == old { // until the library has closed it
		now = ensure(t, l, "plan")
	}
	if s, err := now.Status(t.Context()); err != nil || s.Epoch != 1 || s.Items > 10 || show(t, now) != want {
		t.Errorf("after the new epoch the document has %s, %+v, %v", show(t, now), s, err)
	}
}

// More documents than may be open at once remain usable: unused ones are closed. A watched document stays open.
func TestUnusedDocumentsAreClosed(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	l.Bound(3, 0)
	watched := ensure(t, l, "watched")
	cancel := watched.OnUpdate(func(replica.Update) {})
	for round := range 2 {
		for i := range 10 {
			if err := ensure(t, l, fmt.Sprint("d", i)).Edit(t.Context(), set(fmt.Sprint(round), i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 10 {
		if got, want := show(t, ensure(t, l, fmt.Sprint("d", i))), fmt.Sprintf(`{"m":{"0":%d,"1":%d}}`, i, i); got != want {
			t.Errorf("document %d has %s, want %s", i, got, want)
		}
	}
	if err := watched.Edit(t.Context(), set("k", 1)); err != nil {
		t.Errorf("the watched document was closed: %v", err)
	}
	cancel()
	cancel()
	l.Bound(3, time.Hour)
	if _, err := l.Ensure(t.Context(), "one more"[:3]); documents.CodeOf(err) != documents.CodeStorage {
		t.Errorf("with all documents in use, opening another returns %v", err)
	}
}

// Wait returns for a change in a new epoch without another call.
func TestWaitContinuesInANewEpoch(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	set := func(value int) *documents.Content {
		c, err := l.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: value}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	set(1)
	seen := set(2).Version
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	received := make(chan string, 1)
	go func() {
		for {
			c, err := l.AwaitDocument(ctx, "plan", seen)
			if err != nil {
				received <- err.Error()
				return
			}
			if seen = c.Version; string(c.Content) == `{"m":{"k":3}}` {
				received <- "all"
				return
			}
		}
	}()
	if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	set(3)
	if got := <-received; got != "all" {
		t.Error(got)
	}
}

// The number of documents is bounded. The error beyond it says what to do; existing documents open and can be
// edited.
func TestTheNumberOfDocumentsIsBounded(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	l.BoundStored(2)
	one := []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: 1}}
	for _, name := range []string{"first", "second"} {
		if _, err := l.EditDocument(t.Context(), name, one); err != nil {
			t.Fatal(err)
		}
	}
	var refused *documents.Error
	if _, err := l.EditDocument(t.Context(), "third", one); !errors.As(err, &refused) || refused.Code != documents.CodeInvalid || refused.Remedy == "" {
		t.Errorf("a third document returns %v", err)
	}
	if _, err := l.EditDocument(t.Context(), "second", one); err != nil {
		t.Error(err)
	}
	if names, err := l.Documents(t.Context()); err != nil || len(names) != 2 {
		t.Errorf("the documents are %v, %v", names, err)
	}
}
