package sharing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/documents/sharing"
)

// link is the program's channel to the hub's documents.
func (p *program) link(t *testing.T) *channel.Channel {
	t.Helper()
	var ch *channel.Channel
	wait.Eventually(t, "the channel is there", func() (ok bool) {
		ch, ok = p.node.Channels().Between(p.id, sharing.CardID)
		return ok
	})
	return ch
}

// send sends an envelope to the hub's documents without changing it.
func (p *program) send(t *testing.T, typ envelope.Type, payload any) {
	t.Helper()
	e, err := envelope.New(p.id, sharing.CardID, typ, payload)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.link(t).Send(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// attach attaches another replica to the program's channel.
func (p *program) attach(t *testing.T, document string) *replica.Replica {
	t.Helper()
	r, err := replica.New(replica.Options{Agent: p.id, State: document, Interval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	detach, err := r.Attach(p.link(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		detach()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Refusals to an agent that repeats forbidden requests are answered and logged a bounded number of times; other
// agents and permitted requests are not affected.
func TestAFloodOfRefusedMessagesIsBounded(t *testing.T) {
	k, p := pair(t, documents.RoleWriter)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
	k.same(t, p)
	// The program's replica keeps receiving updates; its agent receives the refusals.
	const asked = 2000
	for i := range asked {
		p.send(t, envelope.StreamData, map[string]any{"state": fmt.Sprintf("secret%d", i%500), "kind": "step1"})
		p.send(t, envelope.Request, map[string]any{"document": "secret", "agent": "mars", "role": "owner"})
	}
	if err := p.link(t).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 2) })
	k.same(t, p)
	if _, shown := content(t, k.document(t)); shown != `{"m":{"k":2}}` {
		t.Errorf("the hub has %s", shown)
	}
	text := k.logs.String()
	if n := strings.Count(text, "agent=mars"); n == 0 || n > 300 {
		t.Errorf("the log mentions it %d times", n)
	}
	if !strings.Contains(text, "are ignored for a while") {
		t.Errorf("the log does not report that its messages are ignored:\n%s", text)
	}
	if first := p.problem(t); first.Code != sharing.CodeDenied && first.Code != sharing.CodeBusy {
		t.Errorf("the agent receives %+v", first)
	}
	if names, err := k.library.Documents(t.Context()); err != nil || len(names) != 1 {
		t.Errorf("the documents are %v, %v", names, err)
	}
}

// An agent may have at most 64 linked documents; the next request is refused with an explanation.
func TestAnAgentHasABoundedNumberOfDocuments(t *testing.T) {
	k, p := pair(t, documents.RoleWriter)
	k.same(t, p) // the first document
	for i := range 64 {
		name := fmt.Sprint("d", i)
		k.share(t, name, "mars", documents.RoleWriter)
		r := p.attach(t, name)
		if i == 63 {
			break
		}
		if err := r.Edit(t.Context(), func(d *crdt.Doc) error { return d.Map("m").Set("k", i) }); err != nil {
			t.Fatal(err)
		}
		d, err := k.library.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		wait.Eventually(t, "the edit is at the hub", func() bool { _, shown := content(t, d); return strings.Contains(shown, `"k"`) })
	}
	got := p.problem(t)
	if got.Code != sharing.CodeBusy || !strings.Contains(got.Message, "64") || got.Remedy == "" {
		t.Errorf("the agent receives %+v", got)
	}
	if text := k.logs.String(); !strings.Contains(text, "document=d63") {
		t.Errorf("the log does not report it:\n%s", text)
	}
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", "as before") })
	k.same(t, p)
}

// A writer's messages in another agent's name, or without a name, reach no document and are logged with their
// sender.
func TestForgedMessagesAreRefused(t *testing.T) {
	k, p := pair(t, documents.RoleWriter)
	k.share(t, "plan", "venus", documents.RoleWriter)
	p.edit(t, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) })
	k.same(t, p)

	// The update is valid and claims venus as its author, but mars sends it.
	forger, err := replica.New(replica.Options{Agent: "venus", State: "plan"})
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close() // it returns nil
	impersonator := &impersonator{channel: p.link(t)}
	detach, err := forger.Attach(impersonator)
	if err != nil {
		t.Fatal(err)
	}
	defer detach()
	if err := forger.Edit(t.Context(), func(d *crdt.Doc) error { return d.Map("m").Set("forged", true) }); err != nil {
		t.Fatal(err)
	}
	if err := forger.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, junk := range []string{
		`{"state":"plan"}`, `{"state":"plan","v":1,"kind":"update","sourceAgentId":"mars","payload":"AAAA"}`,
		`{"state":"plan","v":"one"}`, `{"state":"plan","kind":7}`, `{"state":"pl\u0000an"}`, `{"state":7}`, `[]`, `{"state":"plan","vectorClock":{"x":-1}}`,
	} {
		p.send(t, envelope.StreamData, json.RawMessage(junk))
	}
	wait.Eventually(t, "the log says who sent it", func() bool {
		text := k.logs.String()
		return strings.Contains(text, "source=mars") && strings.Contains(text, "must not forward")
	})
	if _, shown := content(t, k.document(t)); strings.Contains(shown, "forged") {
		t.Errorf("the hub has %s", shown)
	}
	if err := k.document(t).Change(t.Context(), []documents.Edit{{Op: documents.OpSet, Path: []string{"m", "k"}, Value: 2}}); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "other edits arrive", func() bool { _, shown := content(t, p.replica); return strings.Contains(shown, `"k":2`) })
}

// impersonator is a link that claims to be another agent's.
type impersonator struct{ channel *channel.Channel }

func (m *impersonator) Send(ctx context.Context, e *envelope.Envelope) error {
	forged, err := envelope.New(m.channel.LocalAgent(), m.channel.RemoteAgent(), e.Type, json.RawMessage(e.Payload))
	if err != nil {
		return err
	}
	return m.channel.Send(ctx, forged)
}
func (m *impersonator) OnMessage(channel.Handler) (remove func()) { return func() {} }
func (m *impersonator) LocalAgent() string                        { return "venus" }
func (m *impersonator) RemoteAgent() string                       { return m.channel.RemoteAgent() }
