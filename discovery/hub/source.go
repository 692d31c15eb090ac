// Package hub lets a program discover the agents of a Parley hub: a [Source] reads the cards that the hub serves
// over HTTP into the program's registry and keeps them up to date.
//
//	hub := &hubcards.Source{URL: "http://127.0.0.1:8080", Token: token}
//	err := node.Registry().EnableDiscovery("hub", hub)
//
// The cards name the hub's WebSocket endpoint. If the node has a websocket.Dialer,
// the first envelope to one of these agents opens a channel.
package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/registry"
)

// The paths of a hub's HTTP server for channels and for cards.
const (
	Path      = "/node"
	CardsPath = Path + "/cards"
)

// DefaultInterval is the default of [Source].Interval.
const DefaultInterval = 5 * time.Second

const (
	maxDocument    = 32 << 20 // bytes of the cards of one hub
	requestTimeout = 10 * time.Second
)

// Source reads the cards of one hub. It is a [registry.Source] and a [registry.Finder]. It skips an agent of the hub
// if a local agent or another source already has its id. Set the fields before the first use; it is then safe for
// concurrent use. One Source serves one registry.
type Source struct {
	// URL is the hub's HTTP server, such as "http://127.0.0.1:8080". All its cards
	// get this server's endpoint, so that no card can redirect the hub's token.
	URL string
	// Token is the hub's bearer token, "" for none. It is only sent over HTTPS or to loopback addresses.
	Token string
	// Interval is the time between a response and the next request; 0 means DefaultInterval. It must be well
	// below the registry's RemoteTTL.
	Interval time.Duration
	// Client makes the requests; nil means a client that follows no redirects.
	Client *http.Client

	mu    sync.Mutex
	etag  string
	cards []agent.Card // the version with etag
}

// Endpoint returns the endpoint for channels of the hub with this HTTP server.
func Endpoint(baseURL string) (agent.Endpoint, error) {
	u, err := parse(baseURL)
	if err != nil {
		return agent.Endpoint{}, err
	}
	u.Scheme = map[string]string{"http": "ws", "https": "wss"}[u.Scheme]
	return agent.Endpoint{Transport: agent.TransportWebSocket, Address: u.JoinPath(Path).String()}, nil
}

func parse(baseURL string) (*url.URL, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, discoveryError("the hub's URL is not of the form http://host:port", err)
	}
	return u, nil
}

func discoveryError(message string, err error) *registry.Error {
	return &registry.Error{Code: registry.CodeDiscovery, Message: message, Err: err}
}

// Check implements [registry.Checker].
func (s *Source) Check() error {
	problem := "the source is nil"
	if s != nil {
		_, err := s.request(context.Background(), "")
		if err == nil {
			return nil
		}
		problem = err.Error()
	}
	return &registry.Error{Code: registry.CodeNotConfigured, Message: problem}
}

// Discover implements [registry.Source]. It requests the cards now and again Interval after each response, and
// returns when a request fails; the registry then calls it again.
func (s *Source) Discover(ctx context.Context, sink registry.Sink) error {
	known := map[string]bool{}
	for {
		cards, err := s.fetch(ctx)
		if err != nil {
			return err
		}
		if err := report(sink, cards, known); err != nil {
			return err
		}
		if !wait.Pause(ctx, cmp.Or(max(s.Interval, 0), DefaultInterval)) {
			return ctx.Err()
		}
	}
}

// report passes found and lost cards to the sink. It skips a card whose id is
// taken here. The last error of another card is returned after all are reported.
func report(sink registry.Sink, cards []agent.Card, known map[string]bool) error {
	var refused error
	now := make(map[string]bool, len(cards))
	for _, card := range cards {
		if err := sink.Found(card); err != nil {
			if re, ok := errors.AsType[*registry.Error](err); !ok || re.Code != registry.CodeConflict {
				refused = err
			}
			continue
		}
		now[card.ID], known[card.ID] = true, true
	}
	for id := range known {
		if !now[id] {
			delete(known, id)
			sink.Lost(id)
		}
	}
	return refused
}

// Find implements [registry.Finder]. It requests the cards now.
func (s *Source) Find(ctx context.Context, q registry.Query) ([]agent.Card, error) {
	cards, err := s.fetch(ctx)
	return slices.DeleteFunc(slices.Clone(cards), func(c agent.Card) bool {
		if q.ID != "" {
			return c.ID != q.ID
		}
		return !c.Has(q.Capability)
	}), err
}

// fetch returns the hub's current cards.
func (s *Source) fetch(ctx context.Context) ([]agent.Card, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.mu.Lock()
	etag, cards := s.etag, s.cards
	s.mu.Unlock()
	req, err := s.request(ctx, etag)
	if err != nil {
		return nil, err
	}
	client := s.Client
	if client == nil {
		client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		defer client.CloseIdleConnections()
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, discoveryError("the hub does not answer", err)
	}
	defer resp.Body.Close() // only read
	switch resp.StatusCode {
	case http.StatusNotModified:
		return cards, nil
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, discoveryError("the hub at "+req.URL.Host+" refuses this program: a valid bearer token is required", nil)
	case http.StatusNotFound:
		return nil, discoveryError("the hub at "+req.URL.Host+" serves no cards: node.enabled is false there, or it is not a Parley hub", nil)
	default:
		return nil, discoveryError(fmt.Sprintf("the hub at %s answers %s", req.URL.Host, resp.Status), nil)
	}
	cards, err = s.read(resp.Body)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.etag, s.cards = resp.Header.Get("ETag"), cards
	s.mu.Unlock()
	return cards, nil
}

func (s *Source) request(ctx context.Context, etag string) (*http.Request, error) {
	u, err := parse(s.URL)
	if err != nil {
		return nil, err
	}
	if s.Token != "" && u.Scheme != "https" && !loopback(u.Hostname()) {
		return nil, discoveryError("the token for "+u.Host+" would be sent in clear text: use an https URL", nil)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(CardsPath).String(), nil)
	if err != nil {
		return nil, discoveryError("the hub's URL cannot be requested", err)
	}
	if s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	if etag != "" {
		req.Header.Set("If-None-Match", etag)
	}
	return req, nil
}

func loopback(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// read decodes the hub's answer. Every card must be valid.
func (s *Source) read(body io.Reader) ([]agent.Card, error) {
	data, err := io.ReadAll(io.LimitReader(body, maxDocument+1))
	if err != nil {
		return nil, discoveryError("the hub's cards could not be read completely", err)
	}
	if len(data) > maxDocument {
		return nil, discoveryError(fmt.Sprintf("the hub's cards have more than %d bytes", maxDocument), nil)
	}
	at, err := Endpoint(s.URL)
	if err != nil {
		return nil, err
	}
	return decode(data, at)
}

func decode(data []byte, at agent.Endpoint) ([]agent.Card, error) {
	var doc struct {
		SchemaVersion int               `json:"schemaVersion"`
		Cards         []json.RawMessage `json:"cards"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, discoveryError("the hub's answer is not a list of cards in JSON", err)
	}
	if doc.SchemaVersion != registry.SchemaVersion {
		return nil, discoveryError(fmt.Sprintf("the hub's cards have schema version %d; this program reads version %d", doc.SchemaVersion, registry.SchemaVersion), nil)
	}
	cards := make([]agent.Card, 0, len(doc.Cards))
	for i, raw := range doc.Cards {
		card, err := agent.Decode(raw)
		if err != nil {
			return nil, discoveryError(fmt.Sprintf("cards[%d] of the hub", i), err)
		}
		card.Endpoints = []agent.Endpoint{at}
		cards = append(cards, card)
	}
	return cards, nil
}
