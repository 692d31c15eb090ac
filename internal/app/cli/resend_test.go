package cli_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	cards "github.com/parleyhub/parley/agent" // main_test.go has an agent
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/telemetry"
	"github.com/parleyhub/parley/telemetry/audit"
)

var epoch = time.Date(2026, 11, 21, 6, 0, 0, 0, time.UTC)

// written creates an audit log of these envelopes, routed successfully one minute apart, and returns its directory.
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

func made(t *testing.T, sender string, tier cards.Tier, to string, kind envelope.Type, payload any, change func(*envelope.Envelope)) *envelope.Envelope {
	t.Helper()
	e, err := envelope.NewFactory(cards.Identity{ID: sender, Tier: tier}).New(to, kind, payload)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return e
	}
	return e.With(change)
}

func seqs(t *testing.T, dir string, f cli.AuditFilter) []uint64 {
	t.Helper()
	var got []uint64
	damage, err := cli.ReadAudit(dir, f, func(rec audit.Record) error {
		got = append(got, rec.Seq)
		return nil
	})
	if err != nil || damage.Places != 0 {
		t.Fatal(damage, err)
	}
	return got
}

func TestFilters(t *testing.T) {
	first := made(t, "a", cards.L3, "echo", envelope.Request, "1", nil)
	dir := written(t, first,
		made(t, "b", cards.L3, "echo", envelope.Notification, "2", nil),
		made(t, "echo", cards.L3, "a", envelope.Response, "3", func(e *envelope.Envelope) { e.CorrelationID = first.ID }),
	)
	for name, tc := range map[string]struct {
		f    cli.AuditFilter
		want []uint64
	}{
		"all":      {cli.AuditFilter{}, []uint64{1, 2, 3}},
		"latest":   {cli.AuditFilter{Latest: 2}, []uint64{2, 3}},
		"latest 1": {cli.AuditFilter{Latest: 1, Agent: "a"}, []uint64{3}},
		"more":     {cli.AuditFilter{Latest: 10}, []uint64{1, 2, 3}},
		"agent":    {cli.AuditFilter{Agent: "b"}, []uint64{2}},
		"thread":   {cli.AuditFilter{Thread: first.ID}, []uint64{1, 3}},
		"type":     {cli.AuditFilter{Type: envelope.Notification}, []uint64{2}},
		"event":    {cli.AuditFilter{Event: telemetry.Security}, nil},
		"failed":   {cli.AuditFilter{Failed: true}, nil},
		"since":    {cli.AuditFilter{Since: epoch.Add(time.Minute)}, []uint64{2, 3}},
		"until":    {cli.AuditFilter{Until: epoch.Add(time.Minute)}, []uint64{1}},
	} {
		got := seqs(t, dir, tc.f)
		if len(got) != len(tc.want) || len(got) > 0 && (got[0] != tc.want[0] || got[len(got)-1] != tc.want[len(tc.want)-1]) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
	if got := seqs(t, filepath.Join(dir, "not-there"), cli.AuditFilter{}); got != nil {
		t.Errorf("without a log: %v", got)
	}
}

func TestDamagedRecordsAreCounted(t *testing.T) {
	dir := written(t, made(t, "a", cards.L3, "echo", envelope.Request, "1", nil))
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
	damage, err := cli.ReadAudit(dir, cli.AuditFilter{}, func(audit.Record) error { n++; return nil })
	if err != nil || damage.Places != 2 || damage.First == nil || n != 2 {
		t.Errorf("%d records, %+v, %v", n, damage, err)
	}
	stop := errors.New("enough")
	if _, err := cli.ReadAudit(dir, cli.AuditFilter{}, func(audit.Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// asks is an agent that answers its first turn with a question.
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

func serveNode(t *testing.T) string {
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
	question := made(t, "a", cards.L3, "asks", envelope.Request, "paint", nil)
	dir := written(t,
		made(t, "a", cards.L3, "can.echo", envelope.Request, "hello", func(e *envelope.Envelope) { e.Metadata.RoutingHint = envelope.ByCapability }),
		question,
		made(t, "a", cards.L3, "asks", envelope.Request, "red", func(e *envelope.Envelope) { e.CorrelationID = question.ID }),
		made(t, "asks", cards.L3, "a", envelope.Response, "done", func(e *envelope.Envelope) { e.CorrelationID = question.ID }),
		made(t, "boss", cards.L0, "echo", envelope.Request, "above the tier of peers", nil),
		made(t, "a", cards.L3, "nobody", envelope.Notification, "hello?", nil),
		made(t, "a", cards.L3, "echo", envelope.TaskProposal, "no proposal", nil),
	)
	var notified []cli.ReplayOutcome
	_, err := cli.Resend(t.Context(), dir, cli.AuditFilter{}, cli.ReplayOptions{
		URL: serveNode(t), Speed: 1e6, Report: func(o cli.ReplayOutcome) { notified = append(notified, o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	answers := map[uint64]string{}
	kinds := map[uint64]string{}
	threads := map[uint64]string{}
	for _, o := range notified {
		if o.Kind != "answer" {
			kinds[o.Seq] = string(o.Kind)
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
	for seq, want := range map[uint64]string{1: "sent", 2: "sent", 3: "sent", 4: "skipped", 5: "failed", 6: "failed", 7: "sent"} {
		if kinds[seq] != want {
			t.Errorf("record %d: %s, want %s", seq, kinds[seq], want)
		}
	}
	for seq, want := range map[uint64]string{1: "hello", 2: "which?", 3: "did red", 7: "invalid-proposal"} {
		if answers[seq] != want {
			t.Errorf("record %d: the answer is %q, want %q", seq, answers[seq], want)
		}
	}
	if threads[2] == question.ID || threads[2] != threads[3] || threads[1] == threads[2] {
		t.Errorf("threads %v", threads)
	}
}

func TestSendEndsWithItsContextAndWithoutAHub(t *testing.T) {
	dir := written(t, made(t, "a", cards.L3, "echo", envelope.Request, "1", nil), made(t, "a", cards.L3, "echo", envelope.Request, "2", nil))
	url := serveNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := cli.Resend(ctx, dir, cli.AuditFilter{}, cli.ReplayOptions{URL: url, Speed: 1, Report: func(cli.ReplayOutcome) { cancel() }})
	if !errors.Is(err, context.Canceled) { // the second record is due a minute later
		t.Errorf("%v", err)
	}
	if _, err := cli.Resend(t.Context(), dir, cli.AuditFilter{}, cli.ReplayOptions{URL: "http://127.0.0.1:1", Report: func(cli.ReplayOutcome) {}}); err == nil {
		t.Error("sent without a hub")
	}
}
