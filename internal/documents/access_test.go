package documents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/documents"
)

// Roles can be granted and revoked and survive restarts; nobody has a role by default.
func TestRolesArePersistent(t *testing.T) {
	b := openBus(t)
	l := openLibrary(t, b)
	role := func(l *documents.Library, name, agent string) documents.Role {
		t.Helper()
		r, err := l.Role(t.Context(), name, agent)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := role(l, "plan", "mars"); r != "" {
		t.Errorf("the first role is %q", r)
	}
	for _, s := range []struct {
		agent string
		role  documents.Role
	}{{"mars", "reader"}, {"mars", "writer"}, {"mars", "writer"}, {"venus", "owner"}, {"saturn", "reader"}, {"saturn", ""}} {
		if err := l.Share(t.Context(), "plan", s.agent, s.role); err != nil {
			t.Fatal(err)
		}
		if r := role(l, "plan", s.agent); r != s.role {
			t.Errorf("the role of %s is %q", s.agent, r)
		}
	}
	closeLibrary(t, l)
	again := openLibrary(t, b)
	defer closeLibrary(t, again)
	if r := role(again, "plan", "venus"); r != documents.RoleOwner { // Role does not open the document
		t.Errorf("the role of venus is %q", r)
	}
	roles, err := again.Shares(t.Context(), "plan")
	if err != nil || len(roles) != 2 || roles["mars"] != documents.RoleWriter {
		t.Errorf("the roles are %v, %v", roles, err)
	}
	if _, _, err := again.Compact(t.Context(), "plan"); err != nil || role(again, "plan", "mars") != documents.RoleWriter {
		t.Errorf("roles were lost with the new epoch: %v", err)
	}
	ensure(t, again, "other")
	if roles, err := again.Shares(t.Context(), "other"); err != nil || roles == nil || len(roles) != 0 {
		t.Errorf("another document has the roles %v, %v", roles, err)
	}
}

// Roles granted concurrently are all stored, even when the document begins a new epoch meanwhile.
func TestRolesAreGrantedConcurrently(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	ensure(t, l, "plan")
	const agents = 12
	var wg sync.WaitGroup
	for i := range agents {
		wg.Go(func() {
			if err := l.Share(t.Context(), "plan", fmt.Sprint("agent", i), documents.RoleWriter); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if roles, err := l.Shares(t.Context(), "plan"); err != nil || len(roles) != agents {
		t.Errorf("the roles are %v, %v", roles, err)
	}
}

func TestRolesAreChecked(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	for name, err := range map[string]error{
		"an unknown role":  l.Share(t.Context(), "plan", "mars", "king"),
		"the hub":          l.Share(t.Context(), "plan", "hub", "reader"),
		"browsers":         l.Share(t.Context(), "plan", documents.Browser, "reader"),
		"everybody":        l.Share(t.Context(), "plan", "*", "reader"),
		"no name":          l.Share(t.Context(), "a.b", "mars", "reader"),
		"a name with dots": func() error { _, err := l.Role(t.Context(), "a.b", "mars"); return err }(),
	} {
		if documents.CodeOf(err) != documents.CodeInvalid {
			t.Errorf("%s returns %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"taking away": l.Share(t.Context(), "none", "mars", ""),
		"showing":     func() error { _, err := l.Shares(t.Context(), "none"); return err }(),
	} {
		if documents.CodeOf(err) != documents.CodeNotFound {
			t.Errorf("%s returns %v", name, err)
		}
	}
}

// wire is a link whose remote end is the test.
type wire struct {
	agent   string
	sent    chan replica.Message
	handler channel.Handler
}

func (w *wire) Send(_ context.Context, e *envelope.Envelope) error {
	var m replica.Message
	if err := json.Unmarshal(e.Payload, &m); err != nil {
		return err
	}
	w.sent <- m
	return nil
}

func (w *wire) OnMessage(h channel.Handler) (remove func()) { w.handler = h; return func() {} }
func (w *wire) LocalAgent() string                          { return "hub-documents" }
func (w *wire) RemoteAgent() string                         { return w.agent }

// A linked replica receives what its agent may read, and nothing after the document began a new epoch.
func TestLinkedReplicasEndWithTheEpoch(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	if err := l.Share(t.Context(), "plan", "mars", "reader"); err != nil {
		t.Fatal(err)
	}
	d := ensure(t, l, "plan")
	reader, stranger := &wire{agent: "mars", sent: make(chan replica.Message, 16)}, &wire{agent: "venus", sent: make(chan replica.Message, 16)}
	for _, w := range []*wire{reader, stranger} {
		leave, err := d.Attach(w)
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		if m := <-w.sent; m.Kind != replica.KindStep1 {
			t.Errorf("the first message is %+v", m)
		}
	}
	if err := d.Edit(t.Context(), set("k", 1)); err != nil {
		t.Fatal(err)
	}
	m := <-reader.sent
	got := crdt.New(crdt.Options{})
	if _, err := got.Apply(m.Payload, nil); err != nil || m.Kind != replica.KindUpdate {
		t.Errorf("the reader receives %+v, %v", m, err)
	}
	if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
		t.Fatal(err)
	}
	if len(stranger.sent) > 0 {
		t.Errorf("an agent without a role receives %+v", <-stranger.sent)
	}
	if _, err := d.Attach(reader); documents.CodeOf(err) != documents.CodeClosed {
		t.Errorf("the document of the former epoch accepts the replica: %v", err)
	}
}
