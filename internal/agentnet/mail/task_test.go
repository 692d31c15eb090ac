package mail_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestNoticesOfTasksAreMailWithReceipts(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	_, hand := nettest.Pair(t, n)
	s := store.New(n.Host("office", "ann", "shop").BusConfig.WithDefaults())
	svc := mail.New(registry.New(s))
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := s.Connected()
	if err != nil {
		t.Fatal(err)
	}
	notice := mail.TaskNotice{ID: uuid.NewString(), SenderGUID: uuid.NewString(), SenderHandle: "hub", Recipient: hand.GUID(), Type: mail.Task,
		Text: "do it", Metadata: map[string]any{"taskId": "t"}}
	status := func() *mail.MessageStatus {
		t.Helper()
		st, err := svc.StatusOf(t.Context(), b, notice.SenderGUID, notice.Recipient, notice.ID)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if st := status(); st != nil {
		t.Errorf("before it was sent: %+v", st)
	}
	for range 2 { // the second time it is stored already
		if err := svc.PostTask(t.Context(), b, notice); err != nil {
			t.Fatal(err)
		}
	}
	if st := status(); st == nil || !st.Seen().IsZero() {
		t.Errorf("before it was read: %+v", st)
	}
	list, _, err := hand.Read(t.Context(), mail.Selection{Type: mail.Task})
	if err != nil || len(list) != 1 || list[0].ID != notice.ID || list[0].Type != mail.Task || string(list[0].Metadata) != `{"taskId":"t"}` {
		t.Fatalf("got %+v, %v", list, err)
	}
	if st := status(); st == nil || time.Since(st.Seen()).Abs() > time.Hour {
		t.Errorf("after it was read: %+v", st)
	}
	elsewhere := notice
	elsewhere.ID, elsewhere.Recipient = uuid.NewString(), uuid.NewString()
	if err := svc.PostTask(t.Context(), b, elsewhere); err != nil { // the inbox is made
		t.Error(err)
	}
	notice.Metadata = map[string]any{"x": func() {}}
	if err := svc.PostTask(t.Context(), b, notice); store.CodeOf(err) != store.InternalError {
		t.Errorf("metadata that is no JSON: %v", err)
	}
	for _, kind := range []mail.MessageType{mail.Task, mail.TaskCanceled} {
		_, err := hand.Send(t.Context(), mail.Message{Recipient: hand.GUID(), Text: "x", Type: kind})
		if store.CodeOf(err) != store.ValidationError || strings.Contains(err.Error(), "task-canceled,") {
			t.Errorf("an agent sends %s: %v", kind, err)
		}
	}
	if _, _, err := hand.Read(t.Context(), mail.Selection{Type: "none"}); store.CodeOf(err) != store.ValidationError {
		t.Errorf("an unknown type: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	notice.ID, notice.Metadata = uuid.NewString(), nil
	if err := svc.PostTask(t.Context(), b, notice); err == nil {
		t.Error("a notice was stored without a connection")
	}
	if _, err := svc.StatusOf(t.Context(), b, notice.SenderGUID, notice.Recipient, notice.ID); err == nil {
		t.Error("a receipt was read without a connection")
	}
}
