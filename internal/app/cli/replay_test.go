//go:build unix

package cli_test

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley"
	cards "github.com/parleyhub/parley/agent" // main_test.go has an agent
	"github.com/parleyhub/parley/channel"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/telemetry/audit"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// newHubOverHTTP is newHub with HTTP on a free port.
func newHubOverHTTP(t *testing.T) (p setup, url string) {
	t.Helper()
	p = newSetup(t)
	file := filepath.Join(p.dir, "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	open := strings.Replace(string(text), "http: {enabled: false}", "http: {port: 0}", 1)
	if err := os.WriteFile(file, []byte(open), 0o600); err != nil {
		t.Fatal(err)
	}
	p.hub(t)
	info, err := daemon.Read(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	return p, info.HTTP
}

// converse sends payloads from an agent of another node to the hub's agent echo and returns the thread of the last
// answer.
func converse(t *testing.T, url string, payloads ...string) (thread string) {
	t.Helper()
	n, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[cards.Transport]transport.Dialer{cards.TransportWebSocket: &websocket.Dialer{}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close(context.Background()) //nolint:errcheck // the test reads only the hub's log
	if err := n.Registry().EnableDiscovery("hub", &hubcards.Source{URL: url}); err != nil {
		t.Fatal(err)
	}
	got := make(chan *envelope.Envelope, 10)
	me, err := n.Join(cards.Card{ID: "visitor", Name: "V", Version: "1", Tier: cards.L3, Capabilities: []cards.Capability{}},
		func(_ context.Context, e *envelope.Envelope) { got <- e })
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range payloads {
		if _, err := me.Send(t.Context(), "echo", envelope.Request, payload); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-got:
			thread = e.CorrelationID
		case <-time.After(20 * time.Second):
			t.Fatal("no answer")
		}
	}
	return thread
}

func records(t *testing.T, o outcome) []audit.Record {
	t.Helper()
	var all []audit.Record
	for line := range strings.Lines(o.stdout) {
		var rec audit.Record
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		all = append(all, rec)
	}
	return all
}

// audited waits until n envelopes are in the hub's audit log, which records each after its delivery.
func (p setup) audited(t *testing.T, n int) []audit.Record {
	t.Helper()
	late := time.After(60 * time.Second)
	for {
		all := records(t, p.run(t, "--format", "json", "replay", "--limit", "0"))
		if len(all) == n {
			return all
		}
		select {
		case <-late:
			t.Fatalf("%d records, want %d", len(all), n)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestReplayListsFiltersAndSendsAgain(t *testing.T) {
	t.Parallel()
	p, url := newHubOverHTTP(t)
	want(t, p.run(t, "replay"), 0, "No record of the audit log matches.")
	thread := converse(t, url, "first", "second \x1b[31mred")
	all := p.audited(t, 4) // two requests, two answers

	o := p.run(t, "replay", "--payload", "--type", "request")
	want(t, o, 0, "visitor → echo")
	if !strings.Contains(o.stdout, "    first\n") || strings.Contains(o.stdout, "\x1b[31m") {
		t.Errorf("%q", o.stdout)
	}
	want(t, p.run(t, "replay", "--failed"), 0, "No record of the audit log matches.")
	want(t, p.run(t, "replay", "--until", "1h"), 0, "No record of the audit log matches.")

	for name, tc := range map[string]struct {
		args []string
		want func(audit.Record) bool
		last int // how many of the matching records; 0: all
	}{
		"a part of a thread": {[]string{"--thread", thread[:len(thread)-1]}, func(r audit.Record) bool { return r.Envelope.Thread() == thread }, 0},
		"the latest thread":  {[]string{"--thread", "latest"}, func(r audit.Record) bool { return r.Envelope.Thread() == all[len(all)-1].Envelope.Thread() }, 0},
		"a number":           {[]string{"--since", "3600"}, func(audit.Record) bool { return true }, 0},
		"thread":             {[]string{"--thread", thread}, func(r audit.Record) bool { return r.Envelope.CorrelationID == thread || r.Envelope.ID == thread }, 0},
		"agent and type": {[]string{"--agent", "visitor", "--type", "response", "--limit", "1"},
			func(r audit.Record) bool { return r.Envelope.Type == envelope.Response }, 1},
		"limit": {[]string{"--limit", "2"}, func(audit.Record) bool { return true }, 2},
	} {
		var want []uint64
		for _, r := range all { // an answer may be recorded after the next request
			if tc.want(r) {
				want = append(want, r.Seq)
			}
		}
		want = want[max(0, len(want)-cmp.Or(tc.last, len(want))):]
		var got []uint64
		for _, r := range records(t, p.run(t, append([]string{"--format", "json", "replay"}, tc.args...)...)) {
			got = append(got, r.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}

	o = p.run(t, "--format", "json", "replay", "--send")
	var kinds []string
	for line := range strings.Lines(o.stdout) {
		var out cli.ReplayOutcome
		if err := json.Unmarshal([]byte(line), &out); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		kinds = append(kinds, string(out.Kind))
		if out.Kind == "answer" && out.Envelope.Type != envelope.Response {
			t.Errorf("%s", out.Envelope.Payload)
		}
	}
	count := map[string]int{}
	for _, k := range kinds {
		count[k]++
	}
	if o.code != 0 || count["sent"] != 2 || count["answer"] != 2 || count["skipped"] != 2 {
		t.Errorf("exit %d, %v, %q", o.code, kinds, o.stderr)
	}
	p.audited(t, 8)
	want(t, p.run(t, "replay", "--send", "--type", "request", "--limit", "1"), 0, "answer response echo → visitor")
}

func TestReplayReportsErrors(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	for _, args := range [][]string{
		{"--event", "x"}, {"--type", "x"}, {"--since", "x"}, {"--until", "-1h"}, {"--limit", "-1"}, {"--speed", "-1"}, {"--timeout", "0s"}, {"more"},
	} {
		if o := p.run(t, append([]string{"replay"}, args...)...); o.code != 2 {
			t.Errorf("%v: %+v", args, o)
		}
	}
	if o := p.run(t, "replay", "--send"); o.code != 3 {
		t.Errorf("without a hub: %+v", o)
	}
	dir := daemon.AuditDir(p.dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	line := `{"seq":1,"event":{"type":"security","sender":"a","recipient":"b","sourceTier":3,"targetTier":0,"code":"TIER_VIOLATION","timestamp":1,"detail":"no"}}` + "\nbroken\n"
	if err := os.WriteFile(filepath.Join(dir, "audit-00000001.jsonl"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	o := p.run(t, "replay")
	want(t, o, 1, "TIER_VIOLATION")
	if !strings.Contains(o.stderr, "damaged in 1 place,") || !strings.Contains(o.stdout, "L3 → L0") {
		t.Errorf("%+v", o)
	}
	p2 := newHub(t)
	if o := p2.run(t, "replay", "--send"); o.code != 1 || !strings.Contains(o.stderr, "node.enabled") {
		t.Errorf("without HTTP: %+v", o)
	}
}
