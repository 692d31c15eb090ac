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
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// service returns the mail of a server as a hub uses it.
func service(t *testing.T, n *nettest.Server) (*mail.Service, *bus.Bus) {
	t.Helper()
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
	return svc, b
}

func TestWaitingMailIsListedWithoutReadingIt(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	svc, b := service(t, n)
	if list, more, err := svc.Waiting(t.Context(), b, uuid.NewString(), 10); err != nil || len(list) != 0 || more {
		t.Errorf("an unknown agent: %+v, %t, %v", list, more, err)
	}
	nettest.SendText(t, boss, hand, "one")
	if list, _, err := hand.Read(t.Context(), mail.Selection{}); err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, more, err := svc.Waiting(t.Context(), b, hand.GUID(), 10); err != nil || len(list) != 0 || more {
		t.Errorf("after it was read: %+v, %t, %v", list, more, err)
	}
	second := nettest.SendText(t, boss, hand, strings.Repeat("x", mail.MaxMail))
	third := nettest.SendText(t, boss, hand, "three")
	nettest.SendText(t, boss, hand, "four")
	list, more, err := svc.Waiting(t.Context(), b, hand.GUID(), 2)
	if err != nil || !more || len(list) != 2 || list[0].ID != second.ID || list[1].ID != third.ID || list[0].Text != "" || list[0].SenderGUID != boss.GUID() {
		t.Errorf("%+v, %t, %v", list, more, err)
	}
	if n, err := hand.Unread(t.Context()); err != nil || n != 3 {
		t.Errorf("unread are %d, %v", n, err)
	}
}

func TestSignsAreRecordedOnceAndSurviveTheReading(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	svc, b := service(t, n)
	sent := nettest.SendText(t, boss, hand, "one")
	m := mail.Mail{ID: sent.ID, SenderGUID: boss.GUID(), Recipient: hand.GUID()}
	at := time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC)
	for i, sign := range []mail.Sign{mail.Held, mail.Woken, mail.Shown, mail.Held, mail.Refused, mail.Woken, "unknown"} {
		if _, err := svc.Note(t.Context(), b, m, sign, at.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	want := mail.Attention{WokenAt: store.Timestamp(at.Add(time.Minute)), ShownAt: store.Timestamp(at.Add(2 * time.Minute)),
		HeldAt: store.Timestamp(at), RefusedAt: store.Timestamp(at.Add(4 * time.Minute))}
	if a, err := svc.Note(t.Context(), b, m, mail.Shown, at); err != nil || a != want {
		t.Errorf("the signs are %+v, %v", a, err)
	}
	if _, _, err := hand.Read(t.Context(), mail.Selection{}); err != nil {
		t.Fatal(err)
	}
	if _, err := hand.MarkHandled(t.Context(), sent.ID, "ok"); err != nil {
		t.Fatal(err)
	}
	status, err := boss.MessageStatus(t.Context(), sent.ID)
	if err != nil || status.Attention != want || status.Status != mail.Handled || status.ReadAt == "" {
		t.Errorf("the status is %+v, %v", status, err)
	}
	other := nettest.SendText(t, boss, hand, "two")
	if status, err := boss.MessageStatus(t.Context(), other.ID); err != nil || status.Attention != (mail.Attention{}) {
		t.Errorf("the status is %+v, %v", status, err)
	}
}
