package terminal

import (
	"context"
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub/events"
	"github.com/parleyhub/parley/swarm"
)

// poisonedHub answers with texts that an attacker has chosen, wherever a text is.
type poisonedHub struct {
	*fakeHub
	text string
}

func poisoned[T any](v T, err error, text string) (T, error) {
	poison(reflect.ValueOf(&v).Elem(), text)
	return v, err
}

// poison adds a text to all texts of a value, besides those that have a meaning for the program.
func poison(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		if s, ok := v.Interface().(string); ok && v.CanSet() {
			v.Set(reflect.ValueOf(s + text))
			return
		}
		poison(v.Elem(), text)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && v.Type().Field(i).Name != "Kind" {
				poison(v.Field(i), text)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		for i := range v.Len() {
			poison(v.Index(i), text)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if s, ok := v.MapIndex(k).Interface().(string); ok && v.Type().Elem().Kind() == reflect.Interface {
				v.SetMapIndex(k, reflect.ValueOf(s+text))
			} else {
				poison(v.MapIndex(k), text)
			}
		}
	case reflect.String:
		// States and times decide what is shown: they stay.
		if v.CanSet() && v.Type() == reflect.TypeFor[string]() && !strings.HasPrefix(v.String(), "2026-") {
			if len(text) > 1<<16 { // many copies would take long
				v.SetString(text)
				return
			}
			v.SetString(v.String() + text)
		}
	}
}

func (p *poisonedHub) Status(ctx context.Context) (*dialect.Status, error) {
	v, err := p.fakeHub.Status(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Agents(ctx context.Context, health bool) ([]dialect.Agent, error) {
	v, err := p.fakeHub.Agents(ctx, health)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Tasks(ctx context.Context, q dialect.TasksListParams) (*dialect.TaskPage, error) {
	v, err := newFake().Tasks(ctx, q)
	v, err = poisoned(v, err, p.text)
	v.NextCursor = ""
	return v, err
}

func (p *poisonedHub) Task(ctx context.Context, _ string) (*dialect.Task, error) {
	f := newFake()
	v, err := f.Task(ctx, f.tasks[2].ID)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Trace(ctx context.Context, id string) (*dialect.TaskTrace, error) {
	v, err := p.fakeHub.Trace(ctx, id)
	v.Traces[0].Tools[0].Input, _ = json.Marshal(map[string]any{"command" + p.text: p.text})
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Needs(ctx context.Context) (*dialect.Needs, error) {
	v, err := newFake().Needs(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Work(ctx context.Context) (*dialect.WorkList, error) {
	v, err := p.fakeHub.Work(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Threads(ctx context.Context) ([]dialect.Thread, error) {
	v, err := p.fakeHub.Threads(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Thread(ctx context.Context, q dialect.ThreadParams) (*dialect.ThreadMessages, error) {
	v, err := p.fakeHub.Thread(ctx, q)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) FileClaims(ctx context.Context) ([]dialect.FileClaim, error) {
	v, err := p.fakeHub.FileClaims(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Totals(ctx context.Context, q dialect.TotalsParams) (*dialect.Totals, error) {
	v, err := p.fakeHub.Totals(ctx, q)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Contexts(ctx context.Context, limit int) ([]dialect.Context, error) {
	v, err := p.fakeHub.Contexts(ctx, limit)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Swarms(ctx context.Context) ([]dialect.SwarmSummary, error) {
	v, err := p.fakeHub.Swarms(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Swarm(ctx context.Context, id string) (*swarm.Session, error) {
	v, err := p.fakeHub.Swarm(ctx, id)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Documents(ctx context.Context) ([]string, error) {
	v, err := p.fakeHub.Documents(ctx)
	return poisoned(v, err, p.text)
}

func (p *poisonedHub) Document(context.Context, string) (*documents.Content, error) {
	content, err := json.Marshal(map[string]any{"notes" + p.text: p.text, "plan": map[string]any{p.text: p.text}})
	return &documents.Content{Version: p.text, Content: content}, err
}

func (p *poisonedHub) HubEvents(ctx context.Context, q dialect.EventsParams) (Stream[events.Event], error) {
	all := story(p.fakeHub)
	poison(reflect.ValueOf(&all).Elem(), p.text)
	return &list[events.Event]{all}, nil
}

// ours are the sequences with which the program colours its texts.
var ours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// visibleOnly returns a text without what moves the cursor, hides, or reorders.
func visibleOnly(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) && r != utf8.RuneError {
			return -1
		}
		return r
	}, s)
}

// everyScreen has the keys to each screen, and to what it opens.
func everyScreen() [][]string {
	all := [][]string{{"?"}, {"3", "down", "down", "down", "down", "enter"}, {"1", "down", "down"}, {"1", "t", "x"}, {"5", "down", "enter"}, {"7", "enter", "enter"}, {"9", "g"}, {"9", "g", "g"}, {"4", "down", "enter"}, {"4", "end", "enter"}}
	for _, n := range strings.Split("123456789", "") {
		all = append(all, []string{n}, []string{n, "enter"}, []string{n, "end", "enter"})
	}
	return all
}

// checkHostile looks at a third of the screens, which n chooses.
func checkHostile(t *testing.T, n int, text string, width, height int) {
	t.Helper()
	f := newFake()
	f.shared.write("notes", strings.ToValidUTF8(text, "?"))
	for i, keys := range everyScreen() {
		if (i+n)%3 != 0 {
			continue
		}
		s := NewStill(&poisonedHub{f, text}, "here", width, height, func() time.Time { return noon })
		s.Keys(keys...)
		for _, l := range s.Lines() {
			plain := ours.ReplaceAllString(l, "")
			if plain != visibleOnly(plain) || display.Cells(plain) > width {
				t.Errorf("%v: %d columns of %d, %q", keys, display.Cells(plain), width, l)
			}
		}
		s.Close()
	}
}

var hostileTexts = []string{
	hostile, "<script>alert(1)</script><img src=x onerror=alert(1)>", "\x1b]52;c;bWluZQ==\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "\x1bP+q544e\x1b\\\x9b31m\x9d0;x\x9c",
	"\u202eevil\u202c\u2066a\u2069\u200f\u061c", "a\u200bb\u200d\u2060\ufeff\u00ad\u2028\u2029", "e" + strings.Repeat("\u0301", 500), "日本語テキスト" + strings.Repeat("🙂", 50), "👩‍👩‍👧‍👦 ❤️ 🇩🇪 1️⃣",
	"\xff\xfe\xed\xa0\x80", "one\r\ntwo\rthree\vfour\ffive\tsix\x08\x08", strings.Repeat("\n", 300), "\U000e0041\U000e0042", strings.Repeat("\x1b[", 100), "%s%d%!x\\",
}

// No text of anybody reaches the terminal with its control sequences, on any screen, and none is wider than the screen.
func TestNoTextOfAnybodyDoesMoreThanStandThere(t *testing.T) {
	for i, text := range hostileTexts {
		size := [][2]int{{80, 24}, {40, 10}, {200, 50}}[i%3]
		checkHostile(t, i/3, text, size[0], size[1])
	}
}

func FuzzTexts(f *testing.F) {
	for _, text := range hostileTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, shown := range []string{clean(text), strings.ReplaceAll(strings.ReplaceAll(whole(text), "\n", ""), "\t", "")} {
			if shown != visibleOnly(shown) || visible(shown) != shown {
				t.Fatalf("%q is shown as %q", text, shown)
			}
		}
		for _, l := range (line{text: whole(text)}).wrapped(40) {
			if display.Cells(l) > 39 {
				t.Fatalf("%q has %d columns", l, display.Cells(l))
			}
		}
	})
}
