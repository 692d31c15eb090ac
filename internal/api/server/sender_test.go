package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/hub"
)

// senderIn returns the sender of the task in a response.
func senderIn(t *testing.T, body string) hub.Sender {
	t.Helper()
	var response struct {
		Result struct{ Metadata map[string]any }
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil || response.Result.Metadata[hub.MetaAgent] != "echo" {
		t.Fatalf("no task: %.300s, %v", body, err)
	}
	return hub.SenderOf(response.Result.Metadata)
}

func TestCallersAreIdentified(t *testing.T) {
	r := start(t, func(c *server.Config) {
		c.Hosts, c.Origins = []string{"hub.example.org"}, []string{"https://page.example.org"}
	})
	body := rpc(1, "message/send", sendParams("hello"))

	c := r.dial(t)
	c.write(body)
	if s := senderIn(t, c.read()); !s.Own() {
		t.Errorf("a client of the socket is %s", s)
	}
	client := hub.Sender{Kind: hub.SenderClient, ID: "127.0.0.1", Label: "curl/8"}
	if s := senderIn(t, r.post(t, "/", body, "User-Agent", "curl/8").body); s != client {
		t.Errorf("a client on this computer is %s", s)
	}
	proxy := hub.Sender{Kind: hub.SenderA2A, ID: "proxy at 127.0.0.1", Label: "curl/8"}
	for _, header := range [][]string{
		{"Host", "hub.example.org"}, {"X-Forwarded-For", "127.0.0.1"}, {"Forwarded", "for=127.0.0.1"}, {"Via", "1.1 x"}, {"X-Real-IP", ""},
	} {
		if s := senderIn(t, r.post(t, "/", body, append(header, "User-Agent", "curl/8")...).body); s != proxy {
			t.Errorf("%v: %s", header, s)
		}
	}
	if s := senderIn(t, r.post(t, "/", body, "Origin", "https://page.example.org", "User-Agent", "").body); s != (hub.Sender{Kind: hub.SenderA2A, ID: "page of https://page.example.org"}) {
		t.Errorf("a page of another origin is %s", s)
	}

	req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/", strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.RemoteAddr = "192.0.2.7:4711"
	w := httptest.NewRecorder()
	r.CalledBy(caller.Caller{Kind: caller.Own}).ServeHTTP(w, req)
	if s := senderIn(t, w.Body.String()); s != (hub.Sender{Kind: hub.SenderA2A, ID: "192.0.2.7"}) {
		t.Errorf("a client on another computer is %s", s)
	}
}
