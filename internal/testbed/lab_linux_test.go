package testbed_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/testbed"
)

// socket is a UDP socket on a host.
type socket struct {
	t *testing.T
	*net.UDPConn
}

func open(t *testing.T, h *testbed.Host) socket {
	t.Helper()
	c, err := h.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return socket{t, c}
}

func (s socket) port() uint16 { return s.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func (s socket) send(to netip.AddrPort) {
	s.t.Helper()
	if _, err := s.WriteToUDPAddrPort([]byte{0}, to); err != nil {
		s.t.Fatal(err)
	}
}

// from waits for a packet and returns its sender.
func (s socket) from() netip.AddrPort {
	s.t.Helper()
	if err := s.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		s.t.Fatal(err)
	}
	_, from, err := s.ReadFromUDPAddrPort(make([]byte, 10))
	if err != nil {
		s.t.Fatal(err)
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

// receives reports whether a packet from an address has arrived. Links of the lab have no delay,
// so earlier packets were forwarded already.
func (s socket) receives(who netip.AddrPort) bool {
	s.t.Helper()
	for {
		if err := s.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			s.t.Fatal(err)
		}
		_, from, err := s.ReadFromUDPAddrPort(make([]byte, 10))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			s.t.Fatal(err)
		}
		if netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) == who {
			return true
		}
	}
}

// What a host sends, or what is sent to it, is lost until that is healed.
func TestCutsInOneDirection(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	l := testbed.NewLab(t)
	here, there := l.Host(), l.Host()
	a, b := open(t, here), open(t, there)
	at, bt := netip.AddrPortFrom(here.Addr(), a.port()), netip.AddrPortFrom(there.Addr(), b.port())
	passes := func() (ab, ba bool) {
		a.send(bt)
		b.send(at)
		return b.receives(at), a.receives(bt)
	}
	for _, sent := range []bool{true, false} {
		l.Lose(here, sent)
		if ab, ba := passes(); ab == sent || ba == !sent {
			t.Errorf("lost what it sends: %v; what it sends arrives: %v, what is sent to it: %v", sent, ab, ba)
		}
		l.Heal(here)
		if ab, ba := passes(); !ab || !ba {
			t.Errorf("healed: %v, %v", ab, ba)
		}
	}
}

func TestNATsFilterAndMapAsTheirKindDoes(t *testing.T) {
	if !testbed.Inside(t) {
		return
	}
	for kind, want := range map[testbed.NAT]struct{ stranger, otherPort, consistent bool }{
		testbed.FullCone:          {stranger: true, otherPort: true, consistent: true},
		testbed.AddressRestricted: {otherPort: true, consistent: true},
		testbed.PortRestricted:    {consistent: true},
		testbed.Careless:          {consistent: true},
		testbed.Symmetric:         {},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			l := testbed.NewLab(t)
			public, strange := l.Host(), l.Host()
			inside := open(t, l.Network(kind).Host())
			a, b, c := open(t, public), open(t, public), open(t, strange)
			addr := func(h *testbed.Host, s socket) netip.AddrPort { return netip.AddrPortFrom(h.Addr(), s.port()) }
			inside.send(addr(public, a))
			seen := a.from()
			if a.send(seen); !inside.receives(addr(public, a)) {
				t.Error("the answer does not arrive")
			}
			b.send(seen)
			if got := inside.receives(addr(public, b)); got != want.otherPort {
				t.Errorf("from another port of a known host: %v", got)
			}
			c.send(seen)
			if got := inside.receives(addr(strange, c)); got != want.stranger {
				t.Errorf("from a stranger: %v", got)
			}
			// A new socket: the packets above may have changed the mapping of the others.
			fresh := open(t, public)
			inside.send(addr(public, fresh))
			if again := fresh.from(); (again == seen) != want.consistent {
				t.Errorf("one socket sees %v, another %v", seen, again)
			}
		})
	}
}
