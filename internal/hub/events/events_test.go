package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openBus(t testing.TB) *bus.Bus {
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

func open(t rapid.TB, b *bus.Bus, o events.Options) *events.Log {
	t.Helper()
	o.Bus = b
	if o.Name == "" {
		o.Name = "test"
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 8 << 20 // the server reserves it
	}
	l, err := events.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err, errors.Unwrap(err))
	}
	return l
}

func closeLog(t rapid.TB, l *events.Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func openFor(t *testing.T, o events.Options) *events.Log {
	l := open(t, openBus(t), o)
	t.Cleanup(func() { closeLog(t, l) })
	return l
}

func subscribe(t rapid.TB, l *events.Log, q events.Query) *events.Reader {
	t.Helper()
	r, err := l.Subscribe(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// next returns the next event of a reader, which must come.
func next(t rapid.TB, r *events.Reader) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := r.Next(ctx)
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return e
}

// rest reads to the latest event.
func rest(t rapid.TB, r *events.Reader) (all []events.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		e, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("Next: %v", err)
		}
		all = append(all, e)
	}
}

func number(n int) events.Event {
	return events.Event{Kind: events.TurnTool, Agent: []string{"a", "b"}[n%2], Data: map[string]any{"n": n}}
}

// numberOf returns the number of an event as number made it.
func numberOf(e events.Event) int {
	switch n := e.Data["n"].(type) {
	case int:
		return n
	case float64:
		return int(n)
	}
	return -1
}

// settled waits until everything that was published is stored, and returns the position after it.
func settled(t rapid.TB, l *events.Log) events.Position {
	t.Helper()
	r := subscribe(t, l, events.Query{Follow: true, Filter: events.Filter{Kinds: []string{"mark"}}})
	defer r.Close()
	l.Publish(events.Event{Kind: "mark.set"})
	for {
		if e := next(t, r); e.Kind == "mark.set" {
			return e.Position
		}
	}
}

func TestAReaderGetsWhatFollows(t *testing.T) {
	l := openFor(t, events.Options{})
	l.Publish(number(1))
	settled(t, l)
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	if e := next(t, r); e.Kind != events.Here || e.Position.Sequence != 2 {
		t.Fatalf("the first event is %+v", e)
	}
	l.Publish(events.Event{Kind: events.TaskState, Agent: "echo", Task: "t1", Context: "c1", Project: "/p", Data: map[string]any{"state": "working"}})
	e := next(t, r)
	if e.Time.IsZero() || e.Position.Sequence != 3 {
		t.Errorf("time %v, position %v", e.Time, e.Position)
	}
	e.Time, e.Position = time.Time{}, events.Position{}
	want := events.Event{Kind: events.TaskState, Agent: "echo", Task: "t1", Context: "c1", Project: "/p", Data: map[string]any{"state": "working"}}
	if !reflect.DeepEqual(events.Alone(e), want) {
		t.Errorf("got %+v, want %+v", e, want)
	}
}

func TestEventsSurviveARestart(t *testing.T) {
	b := openBus(t)
	l := open(t, b, events.Options{})
	began := time.Now().Add(-time.Second)
	for n := range 5 {
		l.Publish(number(n))
	}
	at := settled(t, l)
	closeLog(t, l)
	l.Publish(number(99)) // discarded
	l = open(t, b, events.Options{})
	defer closeLog(t, l)
	l.Publish(number(5))
	settled(t, l)
	for name, tt := range map[string]struct {
		query events.Query
		want  []int
	}{
		"from a position":        {events.Query{After: at}, []int{5}},
		"from a time":            {events.Query{Since: began, Filter: events.Filter{Kinds: []string{"turn"}}}, []int{0, 1, 2, 3, 4, 5}},
		"of an agent":            {events.Query{Since: began, Filter: events.Filter{Agent: "b"}}, []int{1, 3, 5}},
		"of a kind nobody has":   {events.Query{Since: began, Filter: events.Filter{Kinds: []string{"tu"}}}, nil},
		"from now":               {events.Query{}, nil},
		"from a time to come":    {events.Query{Since: time.Now().Add(time.Hour)}, nil},
		"of a task nobody knows": {events.Query{Since: began, Filter: events.Filter{Task: "t"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := subscribe(t, l, tt.query)
			defer r.Close()
			var got []int
			for _, e := range rest(t, r) {
				if e.Kind == events.Gap {
					t.Errorf("a gap: %v", e.Data)
				}
				if e.Kind == events.TurnTool {
					got = append(got, numberOf(e))
				}
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestAfterAKillThereIsAGap leaves a log open, as a kill does, and opens the stream again.
func TestAfterAKillThereIsAGap(t *testing.T) {
	b := openBus(t)
	killed := open(t, b, events.Options{})
	defer closeLog(t, killed)
	killed.Publish(number(1))
	at := settled(t, killed)
	for _, want := range [][]any{{"killed"}, {"killed", nil}} { // the second start is after a clean stop, which has stored a position
		l := open(t, b, events.Options{})
		l.Publish(number(2))
		settled(t, l)
		r := subscribe(t, l, events.Query{After: at, Filter: events.Filter{Agent: "none"}})
		var reasons []any
		for _, e := range rest(t, r)[1:] {
			reasons = append(reasons, e.Data["reason"])
		}
		r.Close()
		closeLog(t, l)
		if diff := cmp.Diff(want, reasons); diff != "" {
			t.Error(diff)
		}
	}
}

// TestAPositionOfALostEventShowsAsAGap deletes the stream, as a power cut deletes its end: later events get the
// sequences of the lost ones.
func TestAPositionOfALostEventShowsAsAGap(t *testing.T) {
	for name, again := range map[string]int{"not reached again": 2, "reached again": 20} {
		t.Run(name, func(t *testing.T) {
			b := openBus(t)
			l := open(t, b, events.Options{})
			for n := range 10 {
				l.Publish(number(n))
			}
			at := settled(t, l)
			closeLog(t, l)
			if err := b.JetStream().DeleteStream(t.Context(), "PARLEY_HUB_test_EVENTS"); err != nil {
				t.Fatal(err)
			}
			l = open(t, b, events.Options{})
			defer closeLog(t, l)
			for n := range again {
				l.Publish(number(100 + n))
			}
			settled(t, l)
			r := subscribe(t, l, events.Query{After: at})
			defer r.Close()
			got := rest(t, r)
			if got[0].Kind != events.Gap || got[0].Data["reason"] != "reset" {
				t.Fatalf("the first event is %+v", got[0])
			}
			if len(got) != 1+again+1 || numberOf(got[1]) != 100 {
				t.Errorf("%d events follow, the first is %+v", len(got)-1, got[1])
			}
		})
	}
}

// TestAStreamThatIsMadeAgainShowsAsGaps deletes the stream while it is written and read.
func TestAStreamThatIsMadeAgainShowsAsGaps(t *testing.T) {
	b := openBus(t)
	l := open(t, b, events.Options{})
	defer func() { closeLog(t, l) }()
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	for n := range 10 {
		l.Publish(number(n))
	}
	settled(t, l)
	for e := next(t, r); e.Kind != "mark.set"; e = next(t, r) {
	}
	stream, err := b.JetStream().Stream(t.Context(), "PARLEY_HUB_test_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.JetStream().DeleteStream(t.Context(), "PARLEY_HUB_test_EVENTS"); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the stream is made again", func() bool { // the server removes the former one's files meanwhile
		_, err := b.EnsureStream(t.Context(), stream.CachedInfo().Config)
		return err == nil
	})
	l.Publish(number(100))
	settled(t, l)
	var kinds []string
	for e := next(t, r); ; e = next(t, r) {
		if kinds = append(kinds, fmt.Sprintf("%s %v %v", e.Kind, e.Data["reason"], e.Data["n"])); e.Kind == "mark.set" {
			break
		}
	}
	if kinds[0] != "gap reset <nil>" || kinds[1] != "turn.tool <nil> 100" {
		t.Errorf("got %v", kinds)
	}
}

// TestABatchThatTheBusStoresInPartIsAGap lets the bus refuse the second of three events for its size.
func TestABatchThatTheBusStoresInPartIsAGap(t *testing.T) {
	b := openBus(t)
	l := open(t, b, events.Options{})
	defer func() { closeLog(t, l) }()
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	next(t, r)
	stream, err := b.JetStream().Stream(t.Context(), "PARLEY_HUB_test_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	small := stream.CachedInfo().Config
	small.MaxMsgSize = 200
	if _, err := b.EnsureStream(t.Context(), small); err != nil {
		t.Fatal(err)
	}
	large := number(1)
	large.Agent = strings.Repeat("x", 250)
	failed, err := l.Store([]events.Event{number(0), large, number(2)})
	if failed != 1 || err == nil {
		t.Errorf("%d failed, %v", failed, err)
	}
	for _, want := range []int{0, 2} {
		if e := next(t, r); numberOf(e) != want {
			t.Errorf("got %+v, want %d", e, want)
		}
	}
}

// TestKindsAreDocumented compares the kinds with the table of docs/json.md, in both directions.
func TestKindsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/json.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Events of the hub\n")
	section, _, _ = strings.Cut(section, "\n## ")
	documented := map[events.Kind]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented[events.Kind(m[1])] = true
		}
	}
	want := map[events.Kind]bool{events.Gap: true, events.Here: true}
	for _, k := range events.Kinds() {
		want[k] = true
	}
	if diff := cmp.Diff(want, documented); diff != "" {
		t.Errorf("kinds (-) and docs/json.md (+) differ:\n%s", diff)
	}
}

// TestKindsAreComplete finds constants of the type Kind that Kinds leaves out.
func TestKindsAreComplete(t *testing.T) {
	source, err := os.ReadFile("events.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := events.Kinds()
	for _, m := range regexp.MustCompile(`\bKind\s*= "([a-z]+\.[a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
		if !slices.Contains(listed, events.Kind(m[1])) {
			t.Errorf("Kinds lacks %s", m[1])
		}
	}
}

// TestAReaderThatRetentionOvertakesLearnsHowManyAreMissing reads one event, lets more expire than are kept, and goes on.
func TestAReaderThatRetentionOvertakesLearnsHowManyAreMissing(t *testing.T) {
	l := openFor(t, events.Options{Window: 8, MaxEvents: 20, Queue: 10_000})
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	next(t, r)
	l.Publish(number(0))
	if e := next(t, r); numberOf(e) != 0 {
		t.Fatalf("got %+v", e)
	}
	const all = 500
	for n := 1; n < all; n++ {
		l.Publish(number(n))
	}
	settled(t, l)
	e := next(t, r)
	missing := int(toFloat(e.Data["count"]))
	if e.Kind != events.Gap || e.Data["reason"] != "expired" || missing == 0 {
		t.Fatalf("got %+v", e)
	}
	for n := 1 + missing; n < all; n++ {
		if e := next(t, r); numberOf(e) != n {
			t.Fatalf("after the gap of %d event %d is %+v", missing, n, e)
		}
		if r.Held() > 256 {
			t.Fatalf("the reader holds %d events", r.Held())
		}
	}
}

func TestOverloadIsCounted(t *testing.T) {
	l := openFor(t, events.Options{Queue: 4, MaxEvents: 50_000})
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	const all = 5000
	for n := range all {
		l.Publish(number(n))
	}
	wait.Eventually(t, "the queue has room", func() bool {
		l.Publish(events.Event{Kind: "mark.end"})
		return l.Counts()["mark.end"] > 0
	})
	got, lost, last := 0, 0, -1
	for {
		e := next(t, r)
		switch e.Kind {
		case events.Gap:
			lost += int(toFloat(e.Data["count"]))
		case events.TurnTool:
			if n := numberOf(e); n <= last {
				t.Fatalf("%d after %d", n, last)
			} else {
				last = n
			}
			got++
		case "mark.end":
			if got+lost < all || lost == 0 {
				t.Errorf("%d events and %d lost, of %d", got, lost, all)
			}
			return
		}
	}
}

func toFloat(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

func TestASlowReaderHoldsOnePage(t *testing.T) {
	l := openFor(t, events.Options{Window: 64, Queue: 10_000})
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	next(t, r)
	const all = 3000
	for n := range all {
		l.Publish(number(n))
	}
	settled(t, l)
	for n := range all {
		if e := next(t, r); numberOf(e) != n {
			t.Fatalf("event %d is %+v", n, e)
		}
		if r.Held() > 256 {
			t.Fatalf("the reader holds %d events", r.Held())
		}
	}
}

func TestAFilterThatSkipsManyKeepsItsPlace(t *testing.T) {
	l := openFor(t, events.Options{})
	r := subscribe(t, l, events.Query{Follow: true, Filter: events.Filter{Task: "none"}})
	defer r.Close()
	first := next(t, r)
	for n := range 600 {
		l.Publish(number(n))
	}
	if e := next(t, r); e.Kind != events.Here || e.Position.Sequence != first.Position.Sequence+512 {
		t.Errorf("got %+v", e)
	}
}

func TestReadersAreBounded(t *testing.T) {
	l := openFor(t, events.Options{MaxReaders: 2})
	one, two := subscribe(t, l, events.Query{}), subscribe(t, l, events.Query{Follow: true})
	if _, err := l.Subscribe(t.Context(), events.Query{}); events.CodeOf(err) != events.CodeBusy {
		t.Errorf("a third reader: %v", err)
	}
	two.Close()
	two.Close()
	if _, err := two.Next(t.Context()); err == nil {
		if _, err = two.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("after Close: %v", err)
		}
	}
	subscribe(t, l, events.Query{}).Close()
	one.Close()
	if _, err := l.Subscribe(t.Context(), events.Query{Filter: events.Filter{Kinds: make([]string, 33)}}); events.CodeOf(err) != events.CodeInvalid {
		t.Errorf("33 kinds: %v", err)
	}
	if _, err := l.Subscribe(t.Context(), events.Query{Filter: events.Filter{Kinds: []string{""}}}); events.CodeOf(err) != events.CodeInvalid {
		t.Errorf("an empty kind: %v", err)
	}
}

func TestTheEndOfTheHubEndsReaders(t *testing.T) {
	l := openFor(t, events.Options{})
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	l.Publish(number(1))
	closeLog(t, l)
	if got := rest(t, r); len(got) != 3 || numberOf(got[1]) != 1 || got[2].Kind != events.Here {
		t.Errorf("got %+v", got)
	}
	if _, err := l.Subscribe(t.Context(), events.Query{}); events.CodeOf(err) != events.CodeClosed {
		t.Errorf("a new reader: %v", err)
	}
}

func TestACallersTimeEnds(t *testing.T) {
	l := openFor(t, events.Options{})
	r := subscribe(t, l, events.Query{Follow: true})
	defer r.Close()
	next(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestEventsThatFollowCloselyAreOneWrite counts the writes, each of which asks for one acknowledgement. No time passes for the log, which waits for an hour.
func TestEventsThatFollowCloselyAreOneWrite(t *testing.T) {
	b := openBus(t)
	l := open(t, b, events.Options{Gather: time.Hour})
	var writes atomic.Int64
	sub, err := b.Conn().Subscribe("parley.hub.test.event", func(m *nats.Msg) {
		if m.Reply != "" {
			writes.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	stored := func(n int64) {
		t.Helper()
		wait.Eventually(t, fmt.Sprint("the subscription has ", n), func() bool {
			got, err := sub.Delivered()
			return err == nil && b.Conn().Flush() == nil && got == n
		})
	}
	for i := range 256 { // a batch, which does not wait
		l.Publish(number(i))
	}
	stored(256)
	l.Publish(number(256))
	l.Publish(number(257))
	closeLog(t, l) // nor does what is left
	stored(256 + 2 + 1)
	if got := writes.Load(); got != 2 {
		t.Errorf("all are %d writes", got)
	}
}

// TestWithoutTheBus closes the bus first: events are lost, but neither Publish nor Close blocks.
func TestWithoutTheBus(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: bus.DurabilityFast})
	if err != nil {
		t.Fatal(err)
	}
	l := open(t, b, events.Options{})
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.Publish(number(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := events.Open(t.Context(), events.Options{Bus: b, Name: "other"}); events.CodeOf(err) != events.CodeStorage {
		t.Errorf("Open: %v", err)
	}
}

func TestNoLog(t *testing.T) {
	var l *events.Log
	l.Publish(number(1))
	if len(l.Counts()) != 0 || l.Close(t.Context()) != nil {
		t.Error("a nil log does something")
	}
}

func TestEventsAreBounded(t *testing.T) {
	data := map[string]any{"bad": []string{"not", "plain"}, "utf8": "a\xff"}
	for i := range 100 {
		data[fmt.Sprintf("key%03d", i)] = strings.Repeat("ü", 1000)
	}
	body, err := events.Encode(events.Event{Kind: events.TaskState, Agent: strings.Repeat("x", 1<<20), Project: strings.Repeat("p", 1<<20), Data: data})
	if err != nil {
		t.Fatal(err)
	}
	if len(body) > 16<<10 || !utf8.Valid(body) {
		t.Errorf("%d bytes, valid %v", len(body), utf8.Valid(body))
	}
	e, err := events.Decode(body, 7)
	if err != nil || e.Position.Sequence != 7 || len(e.Data) != 24 || e.Data["bad"] != nil {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestEachEventOnceInOrder lets publishers, a restart, expiry and readers with filters and reconnects run in any
// order: each reader gets each event that it selects once and in order, or a gap.
func TestEachEventOnceInOrder(t *testing.T) {
	b := openBus(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		o := events.Options{
			Name: fmt.Sprintf("run%d", run), MaxBytes: 1 << 20, Window: rapid.IntRange(1, 40).Draw(t, "window"),
			MaxEvents: rapid.SampledFrom([]int64{10, 100_000}).Draw(t, "kept"),
		}
		l := open(t, b, o)
		type reader struct {
			*events.Reader
			filter events.Filter
			at     events.Position
			last   int  // the number of the last event
			gap    bool // since then
		}
		published := 0
		check := func(r *reader, e events.Event) {
			if e.Position.Sequence < r.at.Sequence {
				t.Fatalf("position %v after %v", e.Position, r.at)
			}
			r.at = e.Position
			switch e.Kind {
			case events.Gap:
				r.gap = true
			case events.TurnTool:
				n, step := numberOf(e), 1
				if r.filter.Agent != "" {
					step = 2
				}
				if n <= r.last || n > r.last+step && !r.gap {
					t.Fatalf("event %d after %d (filter %v, gap %v)", n, r.last, r.filter, r.gap)
				}
				r.last, r.gap = n, false
			}
		}
		var readers []*reader
		connect := func(r *reader, q events.Query) {
			q.Filter = r.filter
			r.Reader = subscribe(t, l, q)
		}
		for range rapid.IntRange(1, 3).Draw(t, "readers") {
			r := &reader{filter: events.Filter{Agent: rapid.SampledFrom([]string{"", "b"}).Draw(t, "agent")}}
			connect(r, events.Query{})
			check(r, next(t, r.Reader))
			readers = append(readers, r)
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"publish", "read", "reconnect", "restart"}).Draw(t, "step") {
			case "publish":
				for range rapid.IntRange(1, 30).Draw(t, "events") {
					published++
					l.Publish(number(published))
				}
				settled(t, l)
			case "read":
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				for range rapid.IntRange(1, 20).Draw(t, "reads") {
					e, err := r.Next(context.Background())
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					check(r, e)
				}
			case "reconnect":
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				r.Close()
				connect(r, events.Query{After: r.at})
			case "restart":
				for _, r := range readers {
					r.Close()
				}
				closeLog(t, l)
				l = open(t, b, o)
				for _, r := range readers {
					connect(r, events.Query{After: r.at})
				}
			}
		}
		for _, r := range readers {
			for _, e := range rest(t, r.Reader) {
				check(r, e)
			}
			step := 0
			if r.filter.Agent != "" {
				step = 1
			}
			if r.last < published-step && !r.gap {
				t.Fatalf("the last event is %d of %d", r.last, published)
			}
			r.Close()
		}
		closeLog(t, l)
	})
}

func FuzzParsePosition(f *testing.F) {
	for _, s := range []string{"", "1-00000001", "12-3e1edf22", "0-00000000", "-1-00000001", "01-00000001", "1-0000000G", "9223372036854775808-00000001", "1-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := events.ParsePosition(s)
		if err != nil {
			if events.CodeOf(err) != events.CodeInvalid || p != (events.Position{}) {
				t.Errorf("%q: %v, %v", s, p, err)
			}
			return
		}
		if p.String() != s {
			t.Errorf("%q became %q", s, p)
		}
		var q events.Position
		if err := q.UnmarshalText([]byte(s)); err != nil || q != p {
			t.Errorf("%q: %v, %v", s, q, err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"epoch":1,"kind":"task.state","time":"2026-01-01T00:00:00Z","agent":"a"}`, `{}`, `{"kind":"x","data":{"n":1}}`, `[]`, ``} {
		f.Add([]byte(s), "task", "a")
	}
	f.Fuzz(func(t *testing.T, data []byte, kind, agent string) {
		e, err := events.Decode(data, 3)
		if err != nil {
			return
		}
		filter := events.Filter{Kinds: []string{kind}, Agent: agent}
		if filter.Check() == nil && filter.Match(&e) && e.Kind != events.Gap {
			if !strings.HasPrefix(string(e.Kind), kind) || agent != "" && e.Agent != agent {
				t.Errorf("%+v matches %+v", e, filter)
			}
		}
		body, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := events.Decode(body, 3)
		if err != nil || again.Kind != e.Kind || again.Position != e.Position {
			t.Errorf("%s became %+v, %v", body, again, err)
		}
		if !json.Valid(body) {
			t.Errorf("%s", body)
		}
	})
}

// All readers of a recent event share one encoding, which is that of the event.
func TestReadersShareTheEncoding(t *testing.T) {
	l := openFor(t, events.Options{})
	readers := []*events.Reader{subscribe(t, l, events.Query{Follow: true}), subscribe(t, l, events.Query{Follow: true})}
	l.Publish(number(7))
	var texts [][]byte
	for _, r := range readers {
		defer r.Close()
		for {
			e := next(t, r)
			text, err := e.JSON()
			var got events.Event
			if err != nil || json.Unmarshal(text, &got) != nil || got.Position != e.Position || got.Kind != e.Kind {
				t.Fatalf("%s, %v; want %+v", text, err, e)
			}
			if e.Kind != events.Here {
				texts = append(texts, text)
				break
			}
		}
	}
	if &texts[0][0] != &texts[1][0] {
		t.Error("each reader has an encoding of its own")
	}
}

// A reader with a pace gets everything, and its end does not wait.
func TestAPacedReaderGetsEverything(t *testing.T) {
	l := openFor(t, events.Options{})
	r := subscribe(t, l, events.Query{Follow: true, Pace: time.Millisecond})
	for n := range 50 {
		l.Publish(number(n))
		for numberOf(next(t, r)) < n {
		}
	}
	slow := subscribe(t, l, events.Query{Follow: true, Pace: time.Hour})
	next(t, slow) // its position
	l.Publish(number(50))
	next(t, slow)
	ended := make(chan error)
	go func() {
		_, err := slow.Next(context.Background())
		ended <- err
	}()
	slow.Close()
	r.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Errorf("the end of a paced reader: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a paced reader does not end")
	}
}

// A brief reader gets few events when many come at once, but those that a person waits for, and how many it did not get.
func TestABriefReaderOfABusyHub(t *testing.T) {
	l := openFor(t, events.Options{Window: 128})
	r := subscribe(t, l, events.Query{Follow: true, Brief: true, Filter: events.Filter{Kinds: []string{"turn", "permission"}}}) // not settled's marks
	defer r.Close()
	next(t, r) // its position
	for n := range 50 {
		l.Publish(number(n))
	}
	settled(t, l)
	for n := range 50 {
		if e := next(t, r); numberOf(e) != n {
			t.Fatalf("%d: %+v", n, e)
		}
	}
	asked := events.Event{Kind: events.PermissionAsked, Task: "t"}
	for n := range 100 {
		if n == 40 {
			l.Publish(asked)
		}
		l.Publish(number(n))
	}
	last := settled(t, l)
	if e := next(t, r); e.Kind != events.PermissionAsked {
		t.Errorf("%+v", e)
	}
	if e := next(t, r); e.Kind != events.Gap || e.Data["reason"] != "brief" || e.Data["count"] != 100 || e.Position != last {
		t.Errorf("%+v", e)
	}
	for n := range 400 { // more than the window has
		l.Publish(number(n))
	}
	last = settled(t, l)
	if e := next(t, r); e.Kind != events.Gap || e.Data["count"].(int) < 400 || e.Position != last || e.Position != r.Position() {
		t.Errorf("%+v", e)
	}
	l.Publish(number(7))
	if e := next(t, r); numberOf(e) != 7 {
		t.Errorf("%+v", e)
	}
}

// A reader may begin with some of the latest events.
func TestAReaderBeginsWithTheLatest(t *testing.T) {
	l := openFor(t, events.Options{})
	for n := range 20 {
		l.Publish(number(n))
	}
	settled(t, l)
	const all = 21 // with that of settled
	for _, c := range []struct {
		query events.Query
		first int
	}{
		{events.Query{Latest: 5}, all - 5}, {events.Query{Latest: 100}, 0},
		{events.Query{Latest: 3, Since: time.Now().Add(-time.Hour)}, all - 3}, {events.Query{Latest: 30, Since: time.Now().Add(-time.Hour)}, 0},
	} {
		r := subscribe(t, l, c.query)
		got := rest(t, r)
		r.Close()
		if len(got) != 1+all-c.first || got[0].Kind != events.Here || numberOf(got[1]) != c.first {
			t.Errorf("%+v: %d events: %+v", c.query, len(got), got[:min(2, len(got))])
		}
	}
}
