package testbed

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// insideVariable is set for a test that runs in a user namespace of its own.
const insideVariable = "PARLEY_TEST_IN_USER_NAMESPACE"

// Inside reports whether the test may make namespaces. If it may not, Inside runs it again in a user namespace where
// it may, takes its result over, and reports false: the caller returns. Where that is not allowed either the test is
// skipped.
func Inside(t *testing.T) bool {
	t.Helper()
	err := onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	if err == nil {
		return true
	}
	if os.Getenv(insideVariable) != "" {
		t.Fatalf("make a network namespace: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$")
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, // one may return only to a network of one's own
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState == nil:
		t.Skipf("network namespaces need root or user namespaces: %v", err)
	case err != nil:
		t.Errorf("in a user namespace: %v\n%s", err, out)
	default:
		t.Logf("in a user namespace:\n%s", out)
	}
	return false
}

// onThread runs f on a thread of its own, which ends with it: what f does to its namespaces concerns nobody else.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good
		done <- f()
	}()
	return <-done
}

// Host is a network namespace. Its methods are safe for concurrent use once the lab is built.
type Host struct {
	t    testing.TB
	name string
	ns   netns.NsHandle
	link *netlink.Handle
	addr netip.Addr
}

// newHost creates a network namespace that is deleted at the end of the test.
func newHost(t testing.TB, name string) *Host {
	t.Helper()
	h := &Host{t: t, name: name}
	err := onThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		h.ns, err = netns.Get()
		return err
	})
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	if h.link, err = netlink.NewHandleAt(h.ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.link.Close()
		if err := h.ns.Close(); err != nil {
			t.Error(err)
		}
	})
	h.up("lo")
	return h
}

// Addr is the host's address.
func (h *Host) Addr() netip.Addr { return h.addr }

// Do runs f on a thread whose sockets and child processes are the host's.
func (h *Host) Do(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return err
		}
		return f()
	})
}

// Start starts a program on the host.
func (h *Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// ListenUDP opens a socket on the host.
func (h *Host) ListenUDP(at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

func (h *Host) must(err error, what string) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %s: %v", h.name, what, err)
	}
}

func (h *Host) find(link string) netlink.Link {
	h.t.Helper()
	l, err := h.link.LinkByName(link)
	h.must(err, "find "+link)
	return l
}

func (h *Host) up(link string) {
	h.t.Helper()
	h.must(h.link.LinkSetUp(h.find(link)), "start "+link)
}

// address assigns an address to a link and activates it.
func (h *Host) address(link string, at netip.Prefix) {
	h.t.Helper()
	a := &netlink.Addr{IPNet: &net.IPNet{IP: at.Addr().AsSlice(), Mask: net.CIDRMask(at.Bits(), 32)}}
	h.must(h.link.AddrAdd(h.find(link), a), "address "+link)
	h.up(link)
}

// gateway sets the default route of a host.
func (h *Host) gateway(via netip.Addr) {
	h.t.Helper()
	h.must(h.link.RouteAdd(&netlink.Route{Gw: via.AsSlice()}), "route")
}

// forward enables IP forwarding on the host.
func (h *Host) forward() {
	h.t.Helper()
	h.must(h.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }), "forward")
}

// cable joins a link of one host with a link of another.
func cable(a *Host, linkA string, b *Host, linkB string) {
	a.t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkA}}
	pair.PeerName, pair.PeerNamespace = linkB, netlink.NsFd(int(b.ns))
	a.must(a.link.LinkAdd(pair), "cable to "+b.name)
}

// Lab is an internet: hosts that everybody can reach, and private networks behind NATs. Build it from one goroutine.
type Lab struct {
	t     testing.TB
	core  *Host
	sites byte
}

// minTTL is what a packet must have left to live in the middle of the internet:
// those that are to die on the way do, as if it were as large as the real one.
const minTTL = 32

// NewLab returns an internet without hosts, which ends with the test.
func NewLab(t testing.TB) *Lab {
	t.Helper()
	l := &Lab{t: t, core: newHost(t, "core")}
	l.core.forward()
	l.core.dropTired(minTTL)
	return l
}

// connect links a host to the internet of the lab and assigns it an address there.
func (l *Lab) connect(h *Host) {
	l.t.Helper()
	l.sites++
	ours, theirs := netip.AddrFrom4([4]byte{9, l.sites, 0, 1}), netip.AddrFrom4([4]byte{9, l.sites, 0, 2})
	site := fmt.Sprintf("site%d", l.sites)
	cable(l.core, site, h, wan)
	l.core.address(site, netip.PrefixFrom(ours, 24))
	h.address(wan, netip.PrefixFrom(theirs, 24))
	h.gateway(ours)
	h.addr = theirs
}

// Host adds a host that everybody can reach.
func (l *Lab) Host() *Host {
	l.t.Helper()
	h := newHost(l.t, fmt.Sprintf("host %d", l.sites+1))
	l.connect(h)
	return h
}

// Unplug cuts the cable of a host that everybody can reach: nothing passes, and nobody is told.
func (l *Lab) Unplug(h *Host) {
	l.t.Helper()
	l.core.must(l.core.link.LinkSetDown(l.core.find(siteOf(h))), "unplug")
}

// Plug mends it.
func (l *Lab) Plug(h *Host) {
	l.t.Helper()
	l.core.up(siteOf(h))
}

// siteOf is the core's end of a host's cable.
func siteOf(h *Host) string { return fmt.Sprintf("site%d", h.addr.As4()[1]) }
