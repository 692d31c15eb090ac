package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/envelope/envelopetest"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, dir string, opts audit.Options) *audit.Log {
	t.Helper()
	l, err := audit.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLog(t, l) })
	return l
}

func closeLog(t testing.TB, l *audit.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func add(t testing.TB, l *audit.Log, detail string) {
	t.Helper()
	if err := l.Append(telemetry.Event{Type: telemetry.CrossTier, Detail: detail}, nil); err != nil {
		t.Fatal(err)
	}
}

// read returns the details of the log's records and the errors of reading them.
func read(dir string) (details []string, errs []error) {
	for rec, err := range audit.Read(dir) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		details = append(details, rec.Event.Detail)
	}
	return details, errs
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "audit-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestRecordsAreReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		l := open(t, dir, audit.Options{Sync: audit.SyncNever})
		defer closeLog(t, l)
		list := rapid.SliceOfN(envelopetest.Envelope(), 0, 10).Draw(rt, "envelopes")
		for i, e := range list {
			if err := l.Append(telemetry.Event{Type: telemetry.RoutingDecision, Timestamp: int64(i + 1)}, e); err != nil {
				rt.Fatal(err)
			}
		}
		n := 0
		for rec, err := range audit.Read(dir) {
			if err != nil {
				rt.Fatal(err)
			}
			want := list[n].With(func(e *envelope.Envelope) {
				e.Payload = json.RawMessage(strings.NewReplacer("\n", " ", "\r", " ").Replace(string(e.Payload)))
			})
			n++
			if rec.Seq != uint64(n) || rec.Event.Timestamp != int64(n) || !rec.Envelope.Equal(want) {
				rt.Fatalf("record %d is %+v, want %+v", n, rec.Envelope, want)
			}
		}
		if n != len(list) {
			rt.Fatalf("read %d of %d", n, len(list))
		}
	})
}

func TestOpenContinuesAfterATruncatedRecord(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	add(t, l, "one")
	add(t, l, "two")
	closeLog(t, l)
	path := files(t, dir)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data[:len(data)-5], 0o600); err != nil {
		t.Fatal(err)
	}
	if got, errs := read(dir); fmt.Sprint(got) != "[one]" || errs != nil {
		t.Errorf("before: %v, %v", got, errs)
	}
	l = open(t, dir, audit.Options{})
	add(t, l, "three")
	if got, errs := read(dir); fmt.Sprint(got) != "[one three]" || errs != nil {
		t.Errorf("after: %v, %v", got, errs)
	}
}

// Req 13.4: the log keeps the records of tool calls, beside the others.
func TestCallsOfToolsAreKeptWithTheirRecords(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	add(t, l, "one")
	call := telemetry.Invocation{ToolName: "shop.price", SourceAgent: "shop", Caller: "ann", Arguments: []byte("{\"of\":\n\"tea\"}"), Result: []byte(`{"eur":3}`),
		Duration: 2.5, Success: true, Timestamp: 7}
	if err := l.AppendInvocation(call); err != nil {
		t.Fatal(err)
	}
	if err := l.AppendInvocation(telemetry.Invocation{ToolName: "\xff"}); audit.CodeOf(err) != audit.CodeCorrupt {
		t.Errorf("a record that is not UTF-8: %v", err)
	}
	add(t, l, "two")
	var got []audit.Record
	for rec, err := range audit.Read(dir) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec)
	}
	call.Arguments = []byte(`{"of":"tea"}`)
	if len(got) != 3 || got[0].Invocation != nil || got[1].Invocation == nil || fmt.Sprint(*got[1].Invocation) != fmt.Sprint(call) || got[1].Event.Type != telemetry.ToolInvocation ||
		got[1].Event.Sender != "ann" {
		t.Errorf("read %+v", got)
	}
}

func TestRotationKeepsTheLogBounded(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{MaxFileSize: 300, MaxFiles: 3})
	for i := range 50 {
		add(t, l, fmt.Sprint(i))
	}
	list := files(t, dir)
	if len(list) != 3 {
		t.Errorf("%d files, want 3", len(list))
	}
	for _, path := range list {
		info, err := os.Stat(path)
		if err != nil || info.Size() > 300 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	got, errs := read(dir)
	if errs != nil || got[len(got)-1] != "49" {
		t.Errorf("read %v, %v", got, errs)
	}
	closeLog(t, l)
	l = open(t, dir, audit.Options{MaxFileSize: 300, MaxFiles: 3})
	add(t, l, "50")
	if got, errs := read(dir); errs != nil || got[len(got)-1] != "50" {
		t.Errorf("after reopening: %v, %v", got, errs)
	}
}

func TestReadNamesMissingAndBrokenRecords(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	for _, d := range []string{"one", "two", "three", "four"} {
		add(t, l, d)
	}
	closeLog(t, l)
	path := files(t, dir)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(data), "\n")
	if err := os.WriteFile(path, []byte(lines[0]+"garbage\n"+`{"seq":0}`+"\n"+`{"seq":2,"event":{},"envelope":{}}`+"\n"+lines[3]), 0o600); err != nil {
		t.Fatal(err)
	}
	got, errs := read(dir)
	var codes []audit.Code
	for _, err := range errs {
		codes = append(codes, audit.CodeOf(err))
	}
	if fmt.Sprint(got) != "[one four]" || fmt.Sprint(codes) != "[AUDIT_CORRUPT AUDIT_CORRUPT AUDIT_CORRUPT AUDIT_GAP]" {
		t.Errorf("read %v, %v", got, errs)
	}
	if !strings.Contains(errs[0].Error(), ":2 ") {
		t.Errorf("%q does not name the line", errs[0])
	}
}

func TestOnlyOneProcessMayOpenALog(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	if _, err := audit.Open(dir, audit.Options{}); audit.CodeOf(err) != audit.CodeLocked {
		t.Errorf("a second Open: %v", err)
	}
	closeLog(t, l)
	closeLog(t, l) // a second Close does nothing
	if err := l.Append(telemetry.Event{}, nil); audit.CodeOf(err) != audit.CodeClosed {
		t.Errorf("Append after Close: %v", err)
	}
	if err := l.Sync(); audit.CodeOf(err) != audit.CodeClosed {
		t.Errorf("Sync after Close: %v", err)
	}
	open(t, dir, audit.Options{})
}

func TestOpenFailsWithoutADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Open(path, audit.Options{}); audit.CodeOf(err) != audit.CodeIO || err.Error() == "" {
		t.Errorf("got %v", err)
	}
	if _, errs := read(path); len(errs) != 1 || audit.CodeOf(errs[0]) != audit.CodeIO {
		t.Errorf("read: %v", errs)
	}
}

func TestKeepAndEmit(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{Sync: audit.SyncAlways, Keep: func(e telemetry.Event) bool { return e.Type == telemetry.Security }})
	r := telemetry.New(telemetry.Options{Sinks: []telemetry.Sink{l}})
	r.Emit(telemetry.Event{Type: telemetry.MessageSent, Detail: "no"})
	r.Emit(telemetry.Event{Type: telemetry.Security, Detail: "yes"})
	if got, errs := read(dir); fmt.Sprint(got) != "[yes]" || errs != nil {
		t.Errorf("read %v, %v", got, errs)
	}
	if err := l.Append(telemetry.Event{Type: telemetry.Security}, &envelope.Envelope{}); audit.CodeOf(err) != audit.CodeCorrupt {
		t.Errorf("an invalid envelope: %v", err)
	}
	if l.Err() == nil {
		t.Error("Err does not return the error of Emit")
	}
	if err := l.Sync(); err != nil {
		t.Error(err)
	}
}

func TestPermissions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "log")
	l := open(t, dir, audit.Options{})
	add(t, l, "x")
	for path, want := range map[string]os.FileMode{dir: 0o700, files(t, dir)[0]: 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got&^want != 0 && os.PathSeparator == '/' {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestConcurrentAppends(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{MaxFileSize: 4096, MaxFiles: 100, Sync: audit.SyncNever})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				if err := l.Append(telemetry.Event{Detail: fmt.Sprint(i)}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, errs := read(dir); len(got) != 200 || errs != nil {
		t.Errorf("read %d, %v", len(got), errs)
	}
}

func TestReplayKeepsTheTimeBetweenRecords(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	e, err := envelope.New("a", "b", envelope.Request, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{1000, 3000, 3000, 2000} {
		if err := l.Append(telemetry.Event{Type: telemetry.RoutingDecision, Timestamp: at}, e); err != nil {
			t.Fatal(err)
		}
		add(t, l, "without an envelope")
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		n, err := audit.Replay(t.Context(), dir, audit.ReplayOptions{Speed: 2}, func(_ context.Context, r audit.Record) error {
			at = append(at, time.Since(start))
			return nil
		})
		if want := []time.Duration{0, time.Second, time.Second, time.Second}; n != 4 || err != nil || fmt.Sprint(at) != fmt.Sprint(want) {
			t.Errorf("replayed %d records at %v, %v", n, at, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err = audit.Replay(ctx, dir, audit.ReplayOptions{Speed: 1}, func(context.Context, audit.Record) error { return nil })
		if n != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %d, %v", n, err)
		}
	})
}

func TestReplayEndsWithTheFirstError(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	add(t, l, "one")
	add(t, l, "two")
	closeLog(t, l)
	all := audit.ReplayOptions{Keep: func(audit.Record) bool { return true }}
	boom := errors.New("boom")
	if n, err := audit.Replay(t.Context(), dir, all, func(_ context.Context, r audit.Record) error {
		if r.Seq == 2 {
			return boom
		}
		return nil
	}); n != 1 || err != boom {
		t.Errorf("%d, %v", n, err)
	}
	path := files(t, dir)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte("x\n"), data...), 0o600); err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, audit.Record) error { return nil }
	if n, err := audit.Replay(t.Context(), dir, all, nothing); n != 0 || audit.CodeOf(err) != audit.CodeCorrupt {
		t.Errorf("%d, %v", n, err)
	}
	all.OnError = func(error) error { return nil }
	if n, err := audit.Replay(t.Context(), dir, all, nothing); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"seq":1,"event":{"type":"error","timestamp":1}}` + "\n"))
	f.Add([]byte(`{"seq":1,"event":{"success":true},"envelope":{"id":"e1","schemaVersion":1,"sender":"a","recipient":"b","type":"request","timestamp":1,"payload":{}}}` + "\nx\n\n{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "audit-00000001.jsonl"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		read(dir)
		l, err := audit.Open(dir, audit.Options{Sync: audit.SyncNever})
		if err != nil {
			t.Fatal(err)
		}
		add(t, l, "added")
		closeLog(t, l)
		got, _ := read(dir)
		if len(got) == 0 || got[len(got)-1] != "added" {
			t.Fatalf("the appended record is not read: %v", got)
		}
	})
}

func Example() {
	dir, err := os.MkdirTemp("", "audit")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	log, err := audit.Open(dir, audit.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := envelope.New("mars", "venus", envelope.Request, "hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := log.Append(telemetry.Of(telemetry.RoutingDecision, e), e); err != nil {
		fmt.Println(err)
	}
	if err := log.Close(); err != nil {
		fmt.Println(err)
	}
	n, err := audit.Replay(context.Background(), dir, audit.ReplayOptions{}, func(_ context.Context, r audit.Record) error {
		fmt.Println(r.Seq, r.Envelope.Sender, string(r.Envelope.Payload))
		return nil
	})
	fmt.Println(n, err)
	// Output:
	// 1 mars "hello"
	// 1 <nil>
}

func BenchmarkAppend(b *testing.B) {
	l := open(b, b.TempDir(), audit.Options{})
	e, err := envelope.New("mars", "venus", envelope.Request, "hello")
	if err != nil {
		b.Fatal(err)
	}
	event := telemetry.Of(telemetry.RoutingDecision, e)
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Append(event, e); err != nil {
			b.Fatal(err)
		}
	}
}

// A flipped bit is one line that is not a record, or two if it was their line break; the others and their numbers are what they were.
func TestEveryFlippedBitIsFound(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, audit.Options{})
	for _, d := range []string{"one", "two", "three"} {
		add(t, l, d)
	}
	closeLog(t, l)
	path := files(t, dir)[0]
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	from, to := len(lines[0]), len(lines[0])+len(lines[1])
	for bit := from * 8; bit < to*8; bit++ {
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		got, errs := read(dir)
		if len(errs) == 0 || audit.CodeOf(errs[0]) != audit.CodeCorrupt || slices.Contains(got, "two") || got[0] != "one" {
			t.Fatalf("bit %d: read %v, %v", bit, got, errs)
		}
		if bit/8 == to-1 || bit%8 > 0 {
			continue
		}
		l := open(t, dir, audit.Options{})
		add(t, l, "four")
		closeLog(t, l)
		if got, errs := read(dir); fmt.Sprint(got) != "[one three four]" || len(errs) != 2 || audit.CodeOf(errs[1]) != audit.CodeGap {
			t.Fatalf("bit %d: read %v, %v", bit, got, errs)
		}
	}
	former := []byte(`{"seq":1,"event":{"type":"CROSS_TIER","detail":"former"}}` + "\n")
	if err := os.WriteFile(path, former, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, errs := read(dir); fmt.Sprint(got) != "[former]" || len(errs) > 0 {
		t.Errorf("read %v, %v", got, errs)
	}
}
