package a2a_test

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	a2agrpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc/metadata"

	a2aserver "github.com/parleyhub/parley/internal/api/a2a"
	"github.com/parleyhub/parley/internal/hub"
)

func TestCallersOverGRPCAreIdentified(t *testing.T) {
	r := newRig(t, func(o *a2aserver.Options) { o.DefaultAgent = "one" })
	transport := a2agrpc10.NewGRPCTransport(r.serveGRPC(a2aserver.GRPCOptions{}))
	for _, tc := range []struct {
		md   []string
		want hub.Sender
	}{
		{nil, hub.Sender{Kind: hub.SenderClient, ID: "127.0.0.1"}},
		{[]string{"x-forwarded-for", "127.0.0.1"}, hub.Sender{Kind: hub.SenderA2A, ID: "proxy at 127.0.0.1"}},
	} {
		result, err := transport.SendMessage(metadata.AppendToOutgoingContext(t.Context(), tc.md...), nil,
			&a2a.SendMessageRequest{Message: a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hello"))})
		if err != nil {
			t.Fatal(err)
		}
		task, err := r.hub.Task(t.Context(), result.(*a2a.Task).ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := hub.SenderOf(task.Metadata); !s.Same(tc.want) || s.Label == "" {
			t.Errorf("%v: %s", tc.md, s)
		}
	}
}
