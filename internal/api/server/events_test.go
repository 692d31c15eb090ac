//go:build unix

package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
)

// The query of a stream of events says how many it begins with, and how it goes on.
func TestTheQueryOfEvents(t *testing.T) {
	r := hubWithEcho(t, bus.DurabilityFast)
	if err := discard(t.Context(), http.DefaultClient, r.url, rpc(1, "message/send", sendParams("hello"))); err != nil {
		t.Fatal(err)
	}
	get := func(query string) (int, string) {
		t.Helper()
		resp, err := http.Get(r.url + "/events?follow=false&" + query)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	wait.Eventually(t, "the end of the task is an event", func() bool {
		_, body := get("latest=100")
		return strings.Contains(body, "completed")
	})
	if status, body := get("latest=2&brief=true"); status != 200 || strings.Count(body, "data: ") != 3 || !strings.HasPrefix(body, "id: ") {
		t.Errorf("%d %s", status, body)
	}
	for _, query := range []string{"latest=some", "latest=-1", "brief=perhaps"} {
		if status, body := get(query); status != 400 || !strings.Contains(body, query[:strings.Index(query, "=")]) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}
