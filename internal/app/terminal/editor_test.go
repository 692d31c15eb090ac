package terminal

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/events"
)

// documentServer merges copies as the hub does.
type documentServer struct {
	doc   *crdt.Doc
	epoch uint64
	lost  int // so many answers are lost
}

func newDocumentServer() *documentServer {
	s := &documentServer{doc: crdt.New(crdt.Options{})}
	s.write("notes", "a text")
	s.write("other", "another")
	return s
}

func (s *documentServer) write(root, text string) {
	if err := s.doc.Text(root).Append(text); err != nil {
		panic(err)
	}
}

func (s *documentServer) text() string { return s.doc.Text("notes").String() }

func (s *documentServer) sync(has documents.Copy) (*documents.Rest, error) {
	if has.Epoch != s.epoch && len(has.Vector) > 0 {
		return nil, jsonrpc.NewError(jsonrpc.CodeInvalidParams, "another epoch", jsonrpc.Details{Code: "DOCUMENT_CHANGED"})
	}
	if len(has.Update) > 0 {
		if _, err := s.doc.Apply(has.Update, nil); err != nil {
			return nil, err
		}
	}
	if s.lost > 0 {
		s.lost--
		return nil, errors.New("the hub closed the connection")
	}
	var vector crdt.StateVector
	if len(has.Vector) > 0 {
		var err error
		if vector, err = crdt.DecodeStateVector(has.Vector, 1000); err != nil {
			return nil, err
		}
	}
	return &documents.Rest{Epoch: s.epoch, Vector: s.doc.StateVector().Encode(), Update: s.doc.EncodeSince(vector)}, nil
}

// begin begins a new epoch with the texts, and something that another has written.
func (s *documentServer) begin(more string) {
	notes := s.text()
	s.doc, s.epoch = crdt.New(crdt.Options{}), s.epoch+1
	s.write("notes", notes+more)
}

func changedDocument() []feedMsg {
	return []feedMsg{{events: []events.Event{{Kind: events.DocumentChanged, Subject: "plan"}}}}
}

func TestDocumentsAreWrittenInPlace(t *testing.T) {
	ctrl := func(c string) string { return "ctrl+" + c }
	for _, tt := range []struct {
		keys []string
		want string
	}{
		{[]string{"new "}, "new a text"},
		{[]string{"end", "!", "enter", "two"}, "a text!\ntwo"},
		{[]string{"right", "backspace", "delete"}, "text"},
		{[]string{"end", ctrl("w"), "word"}, "a word"},
		{[]string{"right", ctrl("k"), "home", "b"}, "ba"},
		{[]string{"right", ctrl("u"), "left"}, " text"},
		{[]string{"x", ctrl("z")}, "a text"},
		{[]string{"x", ctrl("z"), ctrl("y")}, "xa text"},
		{[]string{"end", "enter", "down", "up", "end", "1", "down", "2"}, "a text1\n2"},
		{[]string{"ä日🙂", "left", "backspace", "right", "delete", "z"}, "ä🙂za text"[:len("ä🙂z")] + " text"},
		{[]string{"q1?:/"}, "q1?:/a text"},
		{[]string{"tab", "other ", "tab", "x"}, "xa text"},
	} {
		f := newFake()
		r := newRig(t, f, 80, 24).keys("7", "enter", "enter")
		r.shows("Document plan · notes (1 of 2)", "✓ saved", "Esc back")
		r.keys(tt.keys...).shows("✓ saved")
		if got := f.shared.text(); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.keys, got, tt.want)
		}
		r.keys("esc").shows("Document plan", "Enter write")
		if len(r.replicas) > 0 {
			t.Errorf("%q: the copy is kept", tt.keys)
		}
	}
}

// Pasted text is only text, and the mouse sets the cursor.
func TestTheEditorPastesAndClicks(t *testing.T) {
	f := newFake()
	r := newRig(t, f, 80, 24).keys("7", "enter", "enter")
	r.post(tea.PasteMsg{Content: "\x1b]0;mine\x07one\r\ntwo "})
	r.post(tea.MouseClickMsg{X: 1, Y: 2, Button: tea.MouseLeft})
	r.keys("!")
	r.post(tea.MouseWheelMsg{Button: tea.MouseWheelDown})
	r.keys("?")
	if got := f.shared.text(); got != "o!ne\ntw?o a text" {
		t.Errorf("%q", got)
	}
	if v := r.View(); v.Cursor == nil || v.Cursor.Y != 3 || v.Cursor.X != 3 {
		t.Errorf("the cursor is at %+v", v.Cursor)
	}
	r.post(tea.MouseClickMsg{X: 24, Y: 0, Button: tea.MouseLeft})
	r.shows(" Tasks  1 of 5")
}

// What others write is shown while the user writes, and the cursor stays in its place.
func TestTwoTerminalsWriteOneDocument(t *testing.T) {
	f := newFake()
	one, two := newRig(t, f, 80, 24).keys("7", "enter", "enter"), newRig(t, f, 80, 24).keys("7", "enter", "enter")
	one.keys("end", "left", "left") // a te|xt
	two.keys("Title", "enter")
	one.post(changedDocument())
	one.shows("Title")
	one.keys("X").shows("a teXxt")
	two.post(changedDocument())
	two.keys("0")
	one.post(changedDocument())
	if got := f.shared.text(); got != "Title\n0a teXxt" || one.editor.text != got || two.editor.text != got {
		t.Errorf("%q, %q, %q", got, one.editor.text, two.editor.text)
	}
	f.shared.doc.Text("notes").Delete(0, 7) //nolint:errcheck // it has them
	one.post(changedDocument())
	if e := one.editor; e.text[:e.at] != "a teX" {
		t.Errorf("the cursor is at %d of %q", e.at, e.text)
	}
}

func TestNothingIsLostWhileTheHubIsAway(t *testing.T) {
	f := newFake()
	r := newRig(t, f, 80, 24).keys("7", "enter", "enter")
	f.err = errAway
	r.post([]feedMsg{{away: errAway}})
	r.keys("mine ").shows("✗ not saved: the hub is away", "mine a text")
	if r.keys("ctrl+c"); r.quit {
		t.Fatal("the program ends without a word")
	}
	r.shows("Ctrl-C leaves without it")
	r.keys("esc", "7").shows("The hub is away")
	f.err = nil
	f.shared.write("notes", " theirs")
	f.shared.lost = 1 // the first answer
	r.post([]feedMsg{{up: true}})
	r.post(idleMsg{})
	if got := f.shared.text(); got != "mine a text theirs" {
		t.Errorf("%q", got)
	}
	if r.keys("ctrl+c"); !r.quit {
		t.Error("the program does not end")
	}
	r = newRig(t, f, 80, 24).keys("7", "enter", "enter")
	f.err = errors.New("the store is full")
	r.keys("x").shows("✗ not saved: the store is full")
	if r.keys("ctrl+c", "ctrl+c"); !r.quit {
		t.Error("the second Ctrl-C does not leave")
	}
}

// A document that begins anew at the hub gets what this copy had written.
func TestEditsOutliveAnEpoch(t *testing.T) {
	f := newFake()
	r := newRig(t, f, 80, 24).keys("7", "enter", "enter", "1")
	f.shared.begin(" theirs")
	r.keys("end", "2").shows("✓ saved")
	r.keys("3")
	if got := f.shared.text(); got != "1a text23 theirs" || r.editor.text != got {
		t.Errorf("%q, %q", got, r.editor.text)
	}
}

func TestAnEmptyDocumentGetsAText(t *testing.T) {
	f := newFake()
	f.shared.doc = crdt.New(crdt.Options{})
	r := newRig(t, f, 80, 24).keys("7", "enter", "enter", "hello")
	if got := f.shared.text(); got != "hello" {
		t.Errorf("%q\n%s", got, r.text())
	}
	f.err = errAway
	r = newRig(t, f, 80, 24)
	r.openEditor("plan")
	r.shows("loading …")
	r.up = false
	r.keys("x").shows("✗ the hub is away")
}

// Several programs write at once while the hub comes and goes and answers are lost: in the end all have the same text, with
// everything that was written once.
func TestProgramsConverge(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		f := newFake()
		rigs := []*rig{newRig(t, f, 60, 12).keys("7", "enter", "enter"), newRig(t, f, 60, 12).keys("7", "enter", "enter"), newRig(t, f, 60, 12).keys("7", "enter", "enter")}
		typed := len("a text")
		for i := range 60 {
			r := rigs[random.IntN(len(rigs))]
			switch random.IntN(9) {
			case 0:
				f.err = errAway
			case 1, 2:
				f.err = nil
			case 3:
				f.shared.lost = random.IntN(3)
			case 4:
				r.post(changedDocument())
			case 5:
				r.keys([]string{"up", "down", "home", "end"}[random.IntN(4)])
			default:
				typed += 4
				r.keys(fmt.Sprintf("<%02d>", i))
			}
		}
		f.err, f.shared.lost = nil, 0
		for range 2 {
			for _, r := range rigs {
				r.post(idleMsg{})
			}
		}
		want := f.shared.text()
		for _, r := range rigs {
			if r.editor.text != want || r.editor.unsaved() {
				t.Fatalf("seed %d: %q, want %q", seed, r.editor.text, want)
			}
		}
		if len(want) != typed {
			t.Fatalf("seed %d: %d bytes, not %d: %q", seed, len(want), typed, want)
		}
	}
}

func TestADifferenceMakesTheText(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		var b strings.Builder
		for range random.IntN(6) {
			b.WriteRune([]rune("aäb日é🙂")[random.IntN(6)])
		}
		return b.String()
	}
	for range 3000 {
		a, b := word(), word()
		d := difference(a, b)
		if got := a[:d.at] + d.text + a[d.at+d.count:]; got != b || strings.ToValidUTF8(d.text, "?") != d.text {
			t.Fatalf("%q to %q: %+v", a, b, d)
		}
	}
}

// Each row fits, shows no sequence of another's, and the cursor finds back to where it was.
func FuzzSheet(f *testing.F) {
	f.Add("one two three\n\ttabbed\r\n\x1b]0;mine\x07 \u202e\u200b日本語 e\u0301\u0301 🙂", uint8(9))
	f.Add(strings.Repeat("long ", 900), uint8(30))
	f.Fuzz(func(t *testing.T, text string, width uint8) {
		text = strings.ToValidUTF8(text, "?")
		var s sheet
		s.resize(int(width))
		s.cut(text)
		var all strings.Builder
		for p, rows := (place{}), 0; ; rows++ {
			row, from := s.row(p)
			shown := s.show(p)
			if display.Cells(shown) > s.width || shown != visibleOnly(shown) {
				t.Fatalf("%q in %d columns", shown, s.width)
			}
			for i := range row {
				if at := from + i; !joins(text[at:]) && (s.placeOf(at) != p || s.byteOf(p, s.column(p, at)) != at) {
					t.Fatalf("%d of %q: row %v, column %d is %d", at, text, p, s.column(p, at), s.byteOf(p, s.column(p, at)))
				}
			}
			all.WriteString(row)
			next := s.move(p, 1)
			if next == p {
				break
			}
			if s.move(next, -1) != p {
				t.Fatalf("back from %v is %v, not %v", next, s.move(next, -1), p)
			}
			p = next
		}
		if all.String() != strings.ReplaceAll(text, "\n", "") {
			t.Fatalf("the rows have %q of %q", all.String(), text)
		}
	})
}

// A key in a line of a megabyte costs little more than in a short one.
func BenchmarkEditorWithALongLine(b *testing.B) {
	f := newFake()
	f.shared.write("notes", strings.Repeat("words and ", 100_000))
	r := newRig(b, f, 200, 50).keys("7", "enter", "enter", "end")
	b.ResetTimer()
	for range b.N {
		r.model.update(tea.KeyPressMsg{Code: tea.KeyUp})
		r.model.View()
	}
}
