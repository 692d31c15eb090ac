package main

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestBrokenPromisesAreFound(t *testing.T) {
	begin := func() (*history, map[string][]string) {
		h := &history{}
		for i := range 6 {
			h.add(operation{"a", i, i != 3})
		}
		return h, map[string][]string{"a": {"a 0", "a 1", "a 2", "a 4", "a 5"}}
	}
	h, found := begin()
	if broken := check(h.ops, found); len(broken) > 0 {
		t.Errorf("nothing is broken: %q", broken)
	}
	if ok, unknown := h.counts(); ok != 5 || unknown != 1 {
		t.Error(ok, unknown)
	}
	found["a"] = []string{"a 0", "a 1", "a 2", "a 4", "a 3", "a 5"} // its outcome was unknown
	if broken := check(h.ops, found); len(broken) > 0 {
		t.Errorf("nothing is broken: %q", broken)
	}
	for _, kind := range []string{"lost", "twice", "order"} {
		h, found := begin()
		if !mutate(kind, h, &found) {
			t.Fatal(kind)
		}
		if broken := check(h.ops, found); len(broken) != 1 || !strings.HasPrefix(broken[0], kind+":") {
			t.Errorf("%s: %q", kind, broken)
		}
	}
	if mutate("other", h, &found) {
		t.Error("an unknown mutation")
	}
	found["a"] = append(found["a"], "a 3", "a 3")
	if broken := check(h.ops, found); len(broken) != 1 {
		t.Errorf("an unknown outcome may come once: %q", broken)
	}
}

func TestAnUpgradesReportSaysWhatBecameOfUnknownOutcomes(t *testing.T) {
	w := &world{reasons: map[string]int{}}
	for i := range 4 {
		var err error
		if i > 1 {
			err = errors.New("no answer")
		}
		w.try(t.Context(), "mail-0", i, func(string) error { return err })
	}
	found := texts{"mail-0": {"mail-0 0", "mail-0 1", "mail-0 3"}}
	var out strings.Builder
	w.report(&out, found)
	for _, want := range []string{
		"mail       2 acknowledged,      3 found; 2 with an unknown outcome, 1 of them found\n", "unknown 2 times: mail: no answer\n", "tasks      0 acknowledged,",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if broken := invented(w.all.ops, found); len(broken) > 0 {
		t.Errorf("%q", broken)
	}
	found["mail-0"] = append(found["mail-0"], "mail-0 9")
	if broken := invented(w.all.ops, found); len(broken) != 1 || !strings.Contains(broken[0], `"mail-0 9"`) {
		t.Errorf("%q, want what nobody has sent", broken)
	}
}

func TestATaskThatTheNextHubDoesIsNotUnsent(t *testing.T) {
	for message, unsent := range map[string]bool{
		"the hub is being replaced by another version":                             true,
		"the hub stopped; task abc stays open and is continued when it runs again": false,
	} {
		body := `{"id":1,"error":{"code":-32000,"message":"` + message + `","data":{"code":"AGENT_UNAVAILABLE"}}}`
		err := decode(&http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil)
		if err == nil || errors.Is(err, errNotSent) != unsent {
			t.Errorf("%s: %v", message, err)
		}
	}
}
