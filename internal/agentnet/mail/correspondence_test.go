package mail_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// Who wrote to whom, and what was read, is seen without reading the mail for anybody.
func TestCorrespondencesShowReceipts(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	boss, hand := nettest.Pair(t, n)
	svc, b := service(t, n)
	if list, err := svc.Correspondences(t.Context(), b, ""); err != nil || len(list) != 0 {
		t.Errorf("before the first mail: %+v, %v", list, err)
	}
	nettest.SendText(t, boss, hand, "one")
	if list, _, err := hand.Read(t.Context(), mail.Selection{}); err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	nettest.SendText(t, hand, boss, "two")
	nettest.SendText(t, boss, hand, "three")
	list, err := svc.Correspondences(t.Context(), b, uuid.NewString())
	if err != nil || len(list) != 1 || list[0].Messages != 3 || list[0].Unread != 2 || list[0].Newest.IsZero() || list[0].A >= list[0].B {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err := svc.Correspondences(t.Context(), b, boss.GUID()); err != nil || len(list) != 1 || list[0].Messages != 1 {
		t.Errorf("without the mail of one: %+v, %v", list, err)
	}
	got, more, err := svc.Between(t.Context(), b, list[0].A, list[0].B, 10)
	if err != nil || more || len(got) != 3 || got[0].Text != "one" || got[0].Status.ReadAt == "" || got[1].Text != "two" || got[2].Text != "three" || got[2].Status.ReadAt != "" || got[2].Status.StoredAt == "" {
		t.Errorf("%+v, %t, %v", got, more, err)
	}
	if got, more, err := svc.Between(t.Context(), b, list[0].A, list[0].B, 1); err != nil || !more || len(got) != 1 || got[0].Text != "three" {
		t.Errorf("the last one: %+v, %t, %v", got, more, err)
	}
	if got, more, err := svc.Between(t.Context(), b, boss.GUID(), uuid.NewString(), 1); err != nil || more || len(got) != 0 {
		t.Errorf("with nobody: %+v, %t, %v", got, more, err)
	}
	if unread, err := hand.Unread(t.Context()); err != nil || unread != 1 {
		t.Errorf("unread are %d, %v", unread, err)
	}
}
