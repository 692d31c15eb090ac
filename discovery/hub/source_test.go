package hub_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/agent"
	hubcards "github.com/parleyhub/parley/discovery/hub"
	"github.com/parleyhub/parley/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHub serves a response that the test sets.
type fakeHub struct {
	mu     sync.Mutex
	body   string
	etag   string
	status int
	asked  chan *http.Request
}

func newFakeHub(t *testing.T) (*fakeHub, string) {
	t.Helper()
	h := &fakeHub{asked: make(chan *http.Request, 1000)}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return h, srv.URL
}

func (h *fakeHub) set(status int, etag, body string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status, h.etag, h.body = status, etag, body
}

func (h *fakeHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case h.asked <- r:
	default:
	}
	w.Header().Set("ETag", h.etag)
	if h.etag != "" && r.Header.Get("If-None-Match") == h.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if h.status == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(h.status)
	fmt.Fprint(w, h.body)
}

func document(ids ...string) string {
	var cards []string
	for _, id := range ids {
		cards = append(cards, fmt.Sprintf(`{"id":%q,"name":"N","version":"1","description":"","tier":3,"protocols":[],
			"endpoints":[{"transport":"websocket","address":"ws://evil.example/steal"}],
			"capabilities":[{"id":"work","name":"","description":""}],"revision":4,"origin":"local","lastSeenAt":1}`, id))
	}
	return `{"schemaVersion":1,"cards":[` + strings.Join(cards, ",") + `]}`
}

func enable(t *testing.T, s registry.Source, o registry.Options) *registry.Registry {
	t.Helper()
	reg := registry.New(o)
	t.Cleanup(func() { reg.Close() }) //nolint:errcheck // returns nil
	if err := reg.EnableDiscovery("hub", s); err != nil {
		t.Fatal(err)
	}
	return reg
}

func until(t *testing.T, reg *registry.Registry, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := reg.Watch()
	defer w.Close()
	for !done() {
		if _, err := w.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// Req 1.7, 1.8: the registry follows the hub's cards as remote ones, and their only endpoint is the hub.
func TestHubCardsAreFollowed(t *testing.T) {
	h, url := newFakeHub(t)
	h.set(200, "", document("a", "b"))
	reg := enable(t, &hubcards.Source{URL: url + "/", Token: "t", Interval: 5 * time.Millisecond}, registry.Options{})
	until(t, reg, func() bool { return reg.Len() == 2 })
	card, err := reg.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	want := agent.Endpoint{Transport: agent.TransportWebSocket, Address: strings.Replace(url, "http", "ws", 1) + "/node"}
	if card.Origin != agent.Remote || card.Revision != 4 || len(card.Endpoints) != 1 || card.Endpoints[0] != want {
		t.Errorf("%+v", card)
	}
	if r := <-h.asked; r.URL.Path != "/node/cards" || r.Header.Get("Authorization") != "Bearer t" {
		t.Errorf("the request was %s %v", r.URL, r.Header)
	}
	h.set(200, "", document("b", "c"))
	until(t, reg, func() bool {
		_, gone := reg.Get("a")
		_, err := reg.Get("c")
		return gone != nil && err == nil
	})
}

// inside passes requests to a handler without a network, for tests with fake time.
type inside struct{ h http.Handler }

func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// Cards do not expire while the hub answers that they are unchanged.
func TestUnchangedCardsDoNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{asked: make(chan *http.Request, 1000)}
		h.set(200, `"1"`, document("a"))
		s := &hubcards.Source{URL: "http://hub.example", Interval: time.Second, Client: &http.Client{Transport: inside{h}}}
		reg := enable(t, s, registry.Options{RemoteTTL: 10 * time.Second})
		<-time.After(5 * time.Minute)
		if reg.Len() != 1 {
			t.Error("the card has expired")
		}
		if n := len(h.asked); n < 200 {
			t.Errorf("the hub received %d requests", n)
		}
		<-h.asked
		if r := <-h.asked; r.Header.Get("If-None-Match") != `"1"` {
			t.Errorf("the request headers were %v", r.Header)
		}
		reg.Close()
	})
}

func TestFindRequestsTheCards(t *testing.T) {
	h, url := newFakeHub(t)
	h.set(200, "", document("a", "b"))
	s := &hubcards.Source{URL: url}
	for q, want := range map[registry.Query]int{{ID: "a"}: 1, {ID: "x"}: 0, {Capability: "work"}: 2, {Capability: "play"}: 0} {
		if cards, err := s.Find(t.Context(), q); err != nil || len(cards) != want {
			t.Errorf("%+v: %d, %v", q, len(cards), err)
		}
	}
}

// An invalid response of the hub is an error that names the problem, and yields no cards.
func TestInvalidHubResponses(t *testing.T) {
	h, url := newFakeHub(t)
	for name, tc := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"no token":              {401, "", "token"},
		"no node":               {404, "", "node.enabled"},
		"broken":                {500, "", "500"},
		"redirects":             {302, "", "302"},
		"no JSON":               {200, "<html>", "JSON"},
		"later version":         {200, `{"schemaVersion":2,"cards":[]}`, "version 2"},
		"invalid card":          {200, `{"schemaVersion":1,"cards":[{"id":"a"}]}`, "cards[0]"},
		"card that is a number": {200, `{"schemaVersion":1,"cards":[7]}`, "cards[0]"},
	} {
		h.set(tc.status, "", tc.body)
		_, err := (&hubcards.Source{URL: url}).Find(t.Context(), registry.Query{ID: "a"})
		var re *registry.Error
		if !errors.As(err, &re) || re.Code != registry.CodeDiscovery || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://x#y", "::"} {
		if _, err := (&hubcards.Source{URL: bad}).Find(t.Context(), registry.Query{ID: "a"}); err == nil {
			t.Errorf("the URL %q was accepted", bad)
		}
	}
	if _, err := (&hubcards.Source{URL: "http://192.0.2.1", Token: "secret"}).Find(t.Context(), registry.Query{ID: "a"}); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "clear") {
		t.Errorf("a token without TLS: %v", err)
	}
}

// A refused card does not affect the others. It is an error only if the registry is full.
func TestRefusedCardDoesNotAffectOthers(t *testing.T) {
	h, url := newFakeHub(t)
	h.set(200, "", document("mine", "b"))
	failed := make(chan error, 100)
	reg := registry.New(registry.Options{MaxCards: 2, OnError: func(_ string, err error) {
		select {
		case failed <- err:
		default:
		}
	}})
	defer reg.Close() //nolint:errcheck // returns nil
	if _, err := reg.Register(agent.Card{ID: "mine", Name: "M", Version: "1", Tier: agent.L0, Capabilities: []agent.Capability{}}); err != nil {
		t.Fatal(err)
	}
	if err := reg.EnableDiscovery("hub", &hubcards.Source{URL: url, Interval: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	until(t, reg, func() bool { return reg.Len() == 2 })
	for range 3 {
		<-h.asked
	}
	if len(failed) != 0 {
		t.Error("a card with an id in use is an error")
	}
	h.set(200, "", document("mine", "c", "b"))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), `"c"`) && !strings.Contains(err.Error(), "cards") {
		t.Errorf("the registry is full: %v", err)
	}
	if card, err := reg.Get("mine"); err != nil || card.Origin != agent.Local {
		t.Errorf("%+v, %v", card, err)
	}
}

func FuzzCards(f *testing.F) {
	f.Add([]byte(document("a")))
	f.Add([]byte(`{"schemaVersion":1,"cards":[]}`))
	f.Add([]byte(`{"schemaVersion":1,"cards":[null,{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		at := agent.Endpoint{Transport: agent.TransportWebSocket, Address: "ws://h/node"}
		cards, err := hubcards.Decode(data, at)
		if err != nil {
			return
		}
		for _, c := range cards {
			if err := c.Validate(); err != nil || len(c.Endpoints) != 1 || c.Endpoints[0] != at {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}

// Req 1.7: a source without a hub that it can ask is not enabled.
func TestAnIncompleteSourceIsRefused(t *testing.T) {
	r := registry.New(registry.Options{})
	defer r.Close()
	for name, source := range map[string]*hubcards.Source{
		"nil": nil, "no URL": {}, "no HTTP": {URL: "ftp://127.0.0.1"}, "a token in clear text": {URL: "http://hub.example.org", Token: "secret"},
	} {
		if err := r.EnableDiscovery(name, source); registry.CodeOf(err) != registry.CodeNotConfigured || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
