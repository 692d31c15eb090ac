package hub_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/federation/node"
	daemon "github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// startHub runs a hub with the agent echo, which has the given tier if it is not nil.
func startHub(tier *int) (url string, stop func()) {
	def, err := runner.Definition{ID: "echo", Driver: runner.DriverEcho, Args: []string{"words"}, Tier: tier}.Complete()
	if err != nil {
		panic(err)
	}
	echo, err := runner.Open(def, runner.Options{})
	if err != nil {
		panic(err)
	}
	h, err := daemon.New(context.Background(), daemon.Config{Agents: []daemon.Agent{{Definition: def, Runner: echo}}})
	if err != nil {
		panic(err)
	}
	n, err := node.Open(node.Options{Hub: h})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	n.Mount(mux.Handle)
	srv := httptest.NewServer(mux)
	return srv.URL, func() {
		defer srv.Close()
		if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
			panic(err)
		}
	}
}

func startHubFor(t *testing.T, tier *int) string {
	t.Helper()
	url, stop := startHub(tier)
	t.Cleanup(stop)
	return url
}

// An L2 agent may not answer an L3 agent: the hub reports the refusal, and ask returns it.
func TestAskReturnsTheHubsRefusal(t *testing.T) {
	tier := 2
	var out strings.Builder
	if err := ask(t.Context(), &out, startHubFor(t, &tier), "", "echo", "hello"); err == nil || !strings.Contains(err.Error(), "could not answer") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestAskPrintsTheAnswer(t *testing.T) {
	url := startHubFor(t, nil)
	var out strings.Builder
	if err := ask(t.Context(), &out, url, "", "echo", "is anybody there?"); err != nil || out.String() != "is anybody there?\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := ask(t.Context(), &out, url, "", "no-such-capability", "hello"); err == nil || !strings.Contains(err.Error(), "no-such-capability") {
		t.Errorf("%v", err)
	}
}
