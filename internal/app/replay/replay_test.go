package replay_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/app/replay"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)

// written is a log with these envelopes, a minute apart, each routed well.
func written(t *testing.T, envelopes ...*envelope.Envelope) string {
	t.Helper()
	dir := t.TempDir()
	log, err := audit.Open(dir, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range envelopes {
		ev := telemetry.Of(telemetry.RoutingDecision, e)
		ev.Timestamp, ev.Success, ev.Target = epoch.Add(time.Duration(i)*time.Minute).UnixMilli(), telemetry.Success, "echo"
		if err := log.Append(ev, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func made(t *testing.T, sender string, tier agent.Tier, to string, kind envelope.Type, payload any, change func(*envelope.Envelope)) *envelope.Envelope {
	t.Helper()
	e, err := envelope.NewFactory(agent.Identity{ID: sender, Tier: tier}).New(to, kind, payload)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return e
	}
	return e.With(change)
}

func seqs(t *testing.T, dir string, f replay.Filter) []uint64 {
	t.Helper()
	var got []uint64
	damage, err := replay.List(dir, f, func(rec audit.Record) error {
		got = append(got, rec.Seq)
		return nil
	})
	if err != nil || damage.Places != 0 {
		t.Fatal(damage, err)
	}
	return got
}

func TestFilters(t *testing.T) {
	first := made(t, "a", agent.L3, "echo", envelope.Request, "1", nil)
	dir := written(t, first,
		made(t, "b", agent.L3, "echo", envelope.Notification, "2", nil),
		made(t, "echo", agent.L3, "a", envelope.Response, "3", func(e *envelope.Envelope) { e.CorrelationID = first.ID }),
	)
	for name, tc := range map[string]struct {
		f    replay.Filter
		want []uint64
	}{
		"all":      {replay.Filter{}, []uint64{1, 2, 3}},
		"latest":   {replay.Filter{Latest: 2}, []uint64{2, 3}},
		"latest 1": {replay.Filter{Latest: 1, Agent: "a"}, []uint64{3}},
		"more":     {replay.Filter{Latest: 10}, []uint64{1, 2, 3}},
		"agent":    {replay.Filter{Agent: "b"}, []uint64{2}},
		"thread":   {replay.Filter{Thread: first.ID}, []uint64{1, 3}},
		"type":     {replay.Filter{Type: envelope.Notification}, []uint64{2}},
		"event":    {replay.Filter{Event: telemetry.Security}, nil},
		"failed":   {replay.Filter{Failed: true}, nil},
		"since":    {replay.Filter{Since: epoch.Add(time.Minute)}, []uint64{2, 3}},
		"until":    {replay.Filter{Until: epoch.Add(time.Minute)}, []uint64{1}},
	} {
		got := seqs(t, dir, tc.f)
		if len(got) != len(tc.want) || len(got) > 0 && (got[0] != tc.want[0] || got[len(got)-1] != tc.want[len(tc.want)-1]) {
			t.Errorf("%s: %v, not %v", name, got, tc.want)
		}
	}
	if got := seqs(t, filepath.Join(dir, "not-there"), replay.Filter{}); got != nil {
		t.Errorf("of no log: %v", got)
	}
}

func TestDamageIsCounted(t *testing.T) {
	dir := written(t, made(t, "a", agent.L3, "echo", envelope.Request, "1", nil))
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("nonsense\n{\"seq\":9,\"event\":{\"type\":\"security\",\"timestamp\":1}}\n"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	n := 0
	damage, err := replay.List(dir, replay.Filter{}, func(audit.Record) error { n++; return nil })
	if err != nil || damage.Places != 2 || damage.First == nil || n != 2 {
		t.Errorf("%d records, %+v, %v", n, damage, err)
	}
	stop := errors.New("enough")
	if _, err := replay.List(dir, replay.Filter{}, func(audit.Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// asks answers its first turn with a question.
type asks struct{ turns int }

func (a *asks) Probe(context.Context) runner.Probe {
	return runner.Probe{Stage: runner.StageAuthenticated}
}
func (a *asks) Open(runner.SessionSpec) (runner.Session, error) { return a, nil }
func (a *asks) Close(context.Context) error                     { return nil }
func (a *asks) Turn(_ context.Context, t runner.Turn, _ runner.Handler) (runner.Outcome, error) {
	if a.turns++; a.turns == 1 {
		return runner.Outcome{Status: runner.OutcomeInputRequired, Text: "which?"}, nil
	}
	return runner.Outcome{Status: runner.OutcomeCompleted, Text: "did " + t.Parts[0].Text()}, nil
}

func serve(t *testing.T) string {
	t.Helper()
	define := func(id string) runner.Definition {
		def, err := runner.Definition{ID: id, Driver: runner.DriverEcho, Capabilities: []runner.Capability{{ID: "can." + id}}}.Complete()
		if err != nil {
			t.Fatal(err)
		}
		return def
	}
	echo, err := runner.Open(define("echo"), runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: define("echo"), Runner: echo}, {Definition: define("asks"), Runner: &asks{}}}})
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Open(node.Options{Hub: h})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	n.Mount(mux.Handle)
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return srv.URL
}

func TestEnvelopesAreSentAgain(t *testing.T) {
	question := made(t, "a", agent.L3, "asks", envelope.Request, "paint", nil)
	dir := written(t,
		made(t, "a", agent.L3, "can.echo", envelope.Request, "hello", func(e *envelope.Envelope) { e.Metadata.RoutingHint = envelope.ByCapability }),
		question,
		made(t, "a", agent.L3, "asks", envelope.Request, "red", func(e *envelope.Envelope) { e.CorrelationID = question.ID }),
		made(t, "asks", agent.L3, "a", envelope.Response, "done", func(e *envelope.Envelope) { e.CorrelationID = question.ID }),
		made(t, "boss", agent.L0, "echo", envelope.Request, "above the tier of peers", nil),
		made(t, "a", agent.L3, "nobody", envelope.Notification, "hello?", nil),
		made(t, "a", agent.L3, "echo", envelope.TaskProposal, "no proposal", nil),
	)
	var told []replay.Outcome
	_, err := replay.Send(t.Context(), dir, replay.Filter{}, replay.Options{
		URL: serve(t), Speed: 1e6, Told: func(o replay.Outcome) { told = append(told, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := map[uint64]string{}
	kinds := map[uint64]replay.Kind{}
	threads := map[uint64]string{}
	for _, o := range told {
		if o.Kind != replay.Answer {
			kinds[o.Seq] = o.Kind
			if o.Envelope != nil {
				threads[o.Seq] = o.Envelope.Thread()
			}
			continue
		}
		var a struct{ Text, RejectionReason string }
		if err := o.Envelope.Unmarshal(&a); err != nil {
			t.Fatal(err)
		}
		answers[o.Seq] = a.Text + a.RejectionReason
	}
	for seq, want := range map[uint64]replay.Kind{1: replay.Sent, 2: replay.Sent, 3: replay.Sent, 4: replay.Skipped, 5: replay.Failed, 6: replay.Failed, 7: replay.Sent} {
		if kinds[seq] != want {
			t.Errorf("record %d: %s, not %s", seq, kinds[seq], want)
		}
	}
	for seq, want := range map[uint64]string{1: "hello", 2: "which?", 3: "did red", 7: "invalid-proposal"} {
		if answers[seq] != want {
			t.Errorf("record %d: answered %q, not %q", seq, answers[seq], want)
		}
	}
	if threads[2] == question.ID || threads[2] != threads[3] || threads[1] == threads[2] {
		t.Errorf("threads %v", threads)
	}
}

func TestSendEndsWithItsContextAndWithoutAHub(t *testing.T) {
	dir := written(t, made(t, "a", agent.L3, "echo", envelope.Request, "1", nil), made(t, "a", agent.L3, "echo", envelope.Request, "2", nil))
	url := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := replay.Send(ctx, dir, replay.Filter{}, replay.Options{URL: url, Speed: 1, Told: func(replay.Outcome) { cancel() }})
	if !errors.Is(err, context.Canceled) { // it waits a minute for the second
		t.Errorf("%v", err)
	}
	if _, err := replay.Send(t.Context(), dir, replay.Filter{}, replay.Options{URL: "http://127.0.0.1:1", Told: func(replay.Outcome) {}}); err == nil {
		t.Error("sent to nobody")
	}
}
