package dialect_test

import (
	"context"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
)

// fakeThreads has one channel.
type fakeThreads struct{ wrote, limit string }

func (f *fakeThreads) Threads(context.Context) ([]dialect.Thread, error) {
	return []dialect.Thread{{ID: "channel:shop/general", Kind: dialect.ThreadChannel, Channel: "general"}}, nil
}

func (f *fakeThreads) Thread(_ context.Context, _ string, limit int) (*dialect.ThreadMessages, error) {
	f.limit = strings.Repeat("x", limit)
	return &dialect.ThreadMessages{Messages: []dialect.ThreadMessage{{From: "ann", Text: strings.Repeat("long", 1<<16)}}}, nil
}

func (f *fakeThreads) WriteThread(_ context.Context, id, text string) (*dialect.WrittenMessage, error) {
	f.wrote = id + " " + text
	return &dialect.WrittenMessage{ThreadID: id, From: "ada"}, nil
}

func TestThreads(t *testing.T) {
	f := &fakeThreads{}
	s := newService(&fakeHub{}, func(c *dialect.Config) { c.Threads = f })
	for _, c := range []struct{ method, params, want string }{
		{"hub/threads/list", `{}`, `"channel":"general"`},
		{"hub/threads/get", `{"threadId":"channel:shop/general"}`, `long…"`},
		{"hub/threads/get", `{"threadId":"channel:shop/general","limit":7}`, `"from":"ann"`},
		{"hub/threads/get", `{}`, `INVALID_PARAMS`},
		{"hub/threads/write", `{"threadId":"channel:shop/general","text":""}`, `INVALID_PARAMS`},
		{"hub/threads/write", `{"threadId":"channel:shop/general","text":"hello"}`, `"from":"ada"`},
	} {
		if answer, _ := call(t, s, method(c.method, c.params)); !strings.Contains(answer, c.want) {
			t.Errorf("%s %s: %.300s", c.method, c.params, answer)
		}
	}
	if f.wrote != "channel:shop/general hello" || len(f.limit) != 7 {
		t.Errorf("wrote %q, limit %d", f.wrote, len(f.limit))
	}
	for _, name := range []string{"hub/threads/list", "hub/threads/get", "hub/threads/write"} { // as over HTTP
		answer, _ := call(t, newService(&fakeHub{}), method(name, `{}`))
		wantError(t, answer, -32601, "METHOD_NOT_FOUND", "")
		if dialect.ReadsOnly(name) != (name != "hub/threads/write") {
			t.Errorf("whether %s reads only", name)
		}
	}
}
