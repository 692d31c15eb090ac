package hyperdht

import (
	"fmt"
	"net/netip"
	"testing"
)

func addrs(texts ...string) (all []netip.AddrPort) {
	for _, t := range texts {
		all = append(all, netip.MustParseAddrPort(t))
	}
	return all
}

// A public node cannot make this node send into its private network.
func TestUsableAddresses(t *testing.T) {
	all := addrs("1.2.3.4:5", "192.168.1.1:5", "127.0.0.1:5", "224.0.0.1:5", "0.0.0.0:5", "1.2.3.4:0")
	for by, want := range map[string]string{
		"8.8.8.8:1":  "[1.2.3.4:5]",
		"10.0.0.1:1": "[1.2.3.4:5 192.168.1.1:5 127.0.0.1:5]",
	} {
		if got := fmt.Sprint(usable(all, netip.MustParseAddrPort(by))); got != want {
			t.Errorf("named by %s: %s, want %s", by, got, want)
		}
	}
}

func TestReachable(t *testing.T) {
	otherwise := netip.MustParseAddrPort("9.9.9.9:9")
	if got := reachable(addrs("192.168.1.1:5", "198.18.0.1:5", "1.2.3.4:0", "1.2.3.4:5"), otherwise); got.String() != "1.2.3.4:5" {
		t.Errorf("got %v", got)
	}
	if got := reachable(addrs("10.0.0.1:5"), otherwise); got != otherwise {
		t.Errorf("got %v", got)
	}
}

func TestNeighbour(t *testing.T) {
	ours := addrs("192.168.1.7:1")
	if got, ok := neighbour(addrs("10.0.0.1:2", "192.168.9.9:2", "192.168.1.2:2", "224.0.0.1:2"), ours); !ok || got.String() != "192.168.1.2:2" {
		t.Errorf("got %v", got)
	}
	if _, ok := neighbour(addrs("224.0.0.1:2", "1.1.1.1:0"), ours); ok {
		t.Error("an address without a neighbour was accepted")
	}
}
