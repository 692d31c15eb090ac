package crdt_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

// kinds are states written by npm yjs 13.6.33 with content that has no type in this package, and one with legacy
// values of older versions.
var kinds = map[string]string{
	"XML":                   "01050100070101780301700700010006040001010568656c6c6f2800010005636c6173730177016187010005016800",
	"embed and attributes":  "010901000401017401688401000165840101016c840102026c6fc60101010201770131c501050102117b22696d616765223a22612e706e67227dc6010601020177046e756c6cc60100010104626f6c640474727565c60102010304626f6c64046e756c6c00",
	"values of JavaScript":  "010501002901016d01640373756276002301016d01620201022801016d03626967017a00000000000000052801016d0175017f2801016d016f01760201627d01017175017d4000",
	"nested, a pair cut":    "010701000701016c0181010001870101020400010203efbfbd81010301840104017827000100016b0101010201010401",
	"a hole of one":         "0103050001010174010a0184050101630105010001",
	"legacy values, delete": "010101000201016c030131047472756509756e646566696e656400",
}

func TestAllKindsOfContentRoundTrip(t *testing.T) {
	for name, state := range kinds {
		t.Run(name, func(t *testing.T) {
			d := crdt.New(crdt.Options{})
			if _, err := d.Apply(unhex(t, state), nil); err != nil {
				t.Fatal(err)
			}
			if err := d.Check(); err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(d.Snapshot()); got != state {
				t.Errorf("the state is\n%s, want\n%s", got, state)
			}
		})
	}
}

func load(t *testing.T, state string) *crdt.Doc {
	t.Helper()
	d := crdt.New(crdt.Options{})
	if _, err := d.Apply(unhex(t, state), nil); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestJavaScriptValuesAreDecoded(t *testing.T) {
	m := load(t, kinds["values of JavaScript"]).Map("m")
	got := map[string]any{}
	for key, v := range m.All() {
		got[key] = v
	}
	object := crdt.Object{{Key: "b", Value: 1.0}, {Key: "q", Value: []any{negativeZero()}}}
	want := map[string]any{"d": crdt.Subdocument{GUID: "sub"}, "b": []byte{1, 2}, "big": crdt.BigInt(5), "u": crdt.Undefined{}, "o": object}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the values are %#v", got)
	}
	if v, ok := object.Get("b"); !ok || v != 1.0 {
		t.Errorf("b is %v", v)
	}
	if b, err := m.JSON(); err != nil || string(b) != `{"b":"AQI=","big":5,"d":{"guid":"sub"},"o":{"b":1,"q":[0]},"u":null}` {
		t.Errorf("as JSON it is %s, %v", b, err)
	}
}

func negativeZero() float64 { z := 0.0; return -z * 1 }

// Legacy values can be split, read and sent in part.
func TestLegacyValues(t *testing.T) {
	d := load(t, kinds["legacy values, delete"])
	l := d.Array("l")
	var got []any
	for _, v := range l.All() {
		got = append(got, v)
	}
	if !reflect.DeepEqual(got, []any{1.0, true, crdt.Undefined{}}) {
		t.Errorf("the values are %v", got)
	}
	part := d.EncodeSince(crdt.StateVector{1: 1})
	if err := l.Delete(1, 1); err != nil {
		t.Fatal(err)
	}
	if b, _ := l.JSON(); string(b) != `[1,null]` {
		t.Errorf("after the deletion the values are %s", b)
	}
	other := crdt.New(crdt.Options{})
	if _, err := other.Apply(part, nil); err != nil || other.Pending().Structs != 1 {
		t.Errorf("applying a part leaves pending %+v, error %v", other.Pending(), err)
	}
}

func TestTextHasAttributesAndEmbeds(t *testing.T) {
	runs := load(t, kinds["embed and attributes"]).Text("t").Runs()
	want := []crdt.Run{
		{Insert: "h"},
		{Insert: "e", Attributes: crdt.Attributes{"bold": true}},
	}
	if len(runs) < 3 || !reflect.DeepEqual(runs[:2], want) {
		t.Errorf("the text is %v", runs)
	}
	d := crdt.New(crdt.Options{Client: 1})
	s := d.Text("t")
	bold := crdt.Attributes{"b": true}
	steps := []struct {
		name string
		edit func() error
		want []crdt.Run
	}{
		{"insert", func() error { return s.Insert(0, "hello world") }, []crdt.Run{{Insert: "hello world"}}},
		{"format", func() error { return s.Format(0, 5, bold) }, []crdt.Run{{Insert: "hello", Attributes: bold}, {Insert: " world"}}},
		{"insert inside", func() error { return s.Insert(2, "XY") }, []crdt.Run{{Insert: "heXYllo", Attributes: bold}, {Insert: " world"}}},
		{"insert plain inside", func() error { return s.InsertWith(2, "-", nil) }, []crdt.Run{{Insert: "he", Attributes: bold}, {Insert: "-"}, {Insert: "XYllo", Attributes: bold}, {Insert: " world"}}},
		{"embed", func() error { return s.InsertEmbed(0, map[string]any{"image": "a"}, nil) }, []crdt.Run{{Insert: map[string]any{"image": "a"}}, {Insert: "he", Attributes: bold}, {Insert: "-"}, {Insert: "XYllo", Attributes: bold}, {Insert: " world"}}},
		{"unformat", func() error { return s.Format(0, s.Len(), crdt.Attributes{"b": nil}) }, []crdt.Run{{Insert: map[string]any{"image": "a"}}, {Insert: "he-XYllo world"}}},
		{"delete", func() error { return s.Delete(0, 4) }, []crdt.Run{{Insert: "XYllo world"}}},
	}
	for _, step := range steps {
		if err := step.edit(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := s.Runs(); !reflect.DeepEqual(got, step.want) {
			t.Fatalf("%s: the text is %v, want %v", step.name, got, step.want)
		}
	}
	if s.String() != "XYllo world" || crdt.Units("a😀") != 3 {
		t.Errorf("the text is %q", s)
	}
}

// Each observer is called once per transaction, with what changed and how.
func TestObserversReceiveChanges(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	m, l, s := d.Map("m"), d.Array("l"), d.Text("t")
	if err := in(d, func() error { return m.Set("k", 1) }, func() error { return l.Append(1, 2, 3) }, func() error { return s.Insert(0, "hello") }); err != nil {
		t.Fatal(err)
	}
	nested, err := m.SetMap("n")
	if err != nil {
		t.Fatal(err)
	}
	var changes []crdt.Change
	cancel := d.Observe(func(c crdt.Change) { changes = append(changes, c) })
	var updates, texts int
	defer d.OnUpdate(func([]byte, any, bool) { updates++ })()
	defer s.Observe(func(c crdt.Change) { texts++ })()
	defer m.Observe(func(crdt.Change) {})()
	defer l.Observe(func(crdt.Change) {})()
	update, err := d.Transact("me", func() error {
		return in(d,
			func() error { return m.Set("k", 2) },
			func() error { return m.Delete("absent") },
			func() error { return l.Delete(1, 1) },
			func() error { return l.Append("x") },
			func() error { return s.Insert(1, "EY") },
			func() error { return s.Delete(5, 2) },
			func() error { return nested.Set("deep", true) },
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || updates != 1 || texts != 1 {
		t.Fatalf("%d changes, %d updates, %d of the text", len(changes), updates, texts)
	}
	c := changes[0]
	if c.Origin != "me" || !c.Local || !slices.Equal(c.Update, update) || len(c.Types) != 4 {
		t.Fatalf("the change is %+v", c)
	}
	want := map[string]crdt.TypeChange{
		"m": {Path: []any{"m"}, Keys: map[string]crdt.KeyChange{"k": {Old: 1.0, New: 2.0, HadOld: true, HasNew: true}}},
		"l": {Path: []any{"l"}, List: []crdt.ListChange{{Retain: 1}, {Delete: 1}, {Retain: 1}, {Insert: []any{"x"}}}},
		"t": {Path: []any{"t"}, List: []crdt.ListChange{{Retain: 1}, {Insert: "EY"}, {Retain: 2}, {Delete: 2}}},
		"n": {Path: []any{"m", "n"}, Keys: map[string]crdt.KeyChange{"deep": {New: true, HasNew: true}}},
	}
	for _, got := range c.Types {
		w := want[got.Path[len(got.Path)-1].(string)]
		if !reflect.DeepEqual(got.Path, w.Path) || !reflect.DeepEqual(got.Keys, w.Keys) || !reflect.DeepEqual(got.List, w.List) || got.Type == nil {
			t.Errorf("the change of %v is %+v", got.Path, got)
		}
	}
	cancel()
	other := crdt.New(crdt.Options{Client: 2})
	if _, err := other.Apply(d.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	if err := other.Text("t").Format(0, 2, crdt.Attributes{"b": true}); err != nil {
		t.Fatal(err)
	}
	var edits []error
	defer d.Observe(func(c crdt.Change) {
		if c.Local || !c.Types[0].Formatted {
			t.Errorf("the change is %+v", c)
		}
		_, err := d.Transact(nil, func() error { return nil })
		edits = append(edits, err, m.Set("k", 3))
	})()
	if _, err := d.Apply(other.Snapshot(), "other"); err != nil {
		t.Fatal(err)
	}
	if len(changes) != 1 || texts != 2 || len(edits) != 2 {
		t.Errorf("%d changes, %d of the text, %d edits by observers", len(changes), texts, len(edits))
	}
	for _, err := range edits {
		if crdt.CodeOf(err) != crdt.CodeInvalid {
			t.Errorf("an edit by an observer returns %v", err)
		}
	}
}

func TestCounterSumsAllReplicas(t *testing.T) {
	a, b := crdt.New(crdt.Options{Client: 1}), crdt.New(crdt.Options{Client: 2})
	if err := in(a, func() error { return a.Counter("c").Add(5) }, func() error { return a.Counter("c").Add(-2) }, func() error { return b.Counter("c").Add(10) }); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Apply(b.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	if got := crdt.CounterOf(a.Map("c")).Value(); got != 13 {
		t.Errorf("the counter is %d", got)
	}
}

// A panic inside a transaction rolls the transaction back.
func TestPanickingTransactionIsRolledBack(t *testing.T) {
	d := crdt.New(crdt.Options{})
	func() {
		defer func() { _ = recover() }()      // the test panics on purpose
		_, _ = d.Transact(nil, func() error { // Transact panics
			if err := d.Text("t").Insert(0, "gone"); err != nil {
				return err
			}
			panic("stop")
		})
	}()
	if d.Text("t").Len() != 0 {
		t.Errorf("the text is %q", d.Text("t"))
	}
	_, err := d.Transact(nil, func() error {
		_, err := d.Apply([]byte{0, 0}, nil)
		return err
	})
	if !errors.As(err, new(*crdt.Error)) {
		t.Errorf("Apply inside a transaction returns %v", err)
	}
}

// Undo keeps concurrent changes of other replicas, even under the same key.
func TestUndoKeepsConcurrentEdits(t *testing.T) {
	a, b := crdt.New(crdt.Options{Client: 1}), crdt.New(crdt.Options{Client: 2})
	undo := a.NewUndo(func(origin any) bool { return origin == nil })
	defer undo.Close()
	if err := in(a, func() error { return a.Map("m").Set("k", "first") }, func() error { return a.Map("m").Set("k", "second") },
		func() error { return a.Text("t").Insert(0, "mine") }); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Transact("not tracked", func() error { return a.Map("m").Set("x", 1) }); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Apply(a.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	if err := in(b, func() error { return b.Map("m").Set("k", "theirs") }, func() error { return b.Text("t").Insert(2, "THEIRS") }); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Apply(b.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	for undo.CanUndo() {
		if _, err := undo.Undo(); err != nil {
			t.Fatal(err)
		}
	}
	a.Array("l")
	if got := mustJSON(t, a); got != `{"l":[],"m":{"k":"theirs","x":1},"t":"THEIRS"}` || !undo.CanRedo() {
		t.Errorf("after all undo steps the document is %s", got)
	}
}
