package agentnet_test

import (
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestUnreadMailIsCountedOnlyWhenItMayHaveChanged(t *testing.T) {
	t.Parallel()
	n := nettest.StartServer(t)
	clock := &nettest.Clock{}
	office, home := n.Host("office", "ann", "shop"), n.Host("home", "ann", "shop")
	home.BusConfig.Now = clock.Now
	boss := nettest.Register(t, nettest.Open(t, office), nettest.Dispatcher())
	hand := nettest.Register(t, nettest.Open(t, home), nettest.Worker("go"))
	counts := func(want int) {
		t.Helper()
		if !nettest.Comes(t, func() bool {
			got, err := hand.UnreadNow(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return got == want
		}) {
			t.Errorf("there are not %d", want)
		}
	}
	counts(0)
	nettest.SendText(t, boss, hand, "one")
	counts(1)
	clock.Forward(10 * time.Second)
	counts(1)
	counts(1) // as it was counted
	nettest.SendText(t, boss, hand, "two")
	counts(2)
	clock.Forward(10 * time.Second)
	counts(2)
	if _, _, err := hand.Read(t.Context(), mail.Selection{Limit: 1}); err != nil {
		t.Fatal(err)
	}
	counts(1)
}
