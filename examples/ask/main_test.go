package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/node"
	"github.com/parleyhub/parley/internal/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAskPrintsWhatTheAgentAnswers(t *testing.T) {
	def, err := runner.Definition{ID: "echo", Driver: runner.DriverEcho, Args: []string{"words"}}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	echo, err := runner.Open(def, runner.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := hub.New(t.Context(), hub.Config{Agents: []hub.Agent{{Definition: def, Runner: echo}}})
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
	defer func() {
		if err := errors.Join(h.Close(context.Background()), n.Close(context.Background())); err != nil {
			t.Error(err)
		}
		srv.Close()
	}()
	var out strings.Builder
	if err := ask(t.Context(), &out, srv.URL, "", "echo", "is anybody there?"); err != nil || out.String() != "is anybody there?\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := ask(t.Context(), &out, srv.URL, "", "no-such-capability", "hello"); err == nil || !strings.Contains(err.Error(), "no-such-capability") {
		t.Errorf("%v", err)
	}
}
