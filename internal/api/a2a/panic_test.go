package a2a_test

import (
	"context"
	"iter"
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
)

// panicking returns h with GetTask and SubscribeToTask that panic.
func panicking(h a2asrv.RequestHandler) a2asrv.RequestHandler { return panicker{h} }

type panicker struct{ a2asrv.RequestHandler }

func (panicker) GetTask(context.Context, *a2a.GetTaskRequest) (*a2a.Task, error) { panic("secret") }

func (panicker) SubscribeToTask(context.Context, *a2a.SubscribeToTaskRequest) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) { panic("secret") }
}

func TestPanicIsAnInternalErrorWithoutDetails(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.Wrap = panicking })
	for path, body := range map[string]string{
		one:                        `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}`,
		one + "/":                  `{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"x"}}`,
		one + "/tasks/x:subscribe": ``,
	} {
		a := r.do(http.MethodPost, path, body)
		if !strings.Contains(string(a.body), "internal error") || strings.Contains(string(a.body), "secret") {
			t.Errorf("%s: HTTP %d %s", path, a.status, a.body)
		}
	}
	// The server still answers.
	if got := r.call(one, "ListTasks", nil); got.Error != nil {
		t.Errorf("%+v", got.Error)
	}
}
