//go:build unix

package doctor_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/app/doctor"
	"github.com/parleyhub/parley/internal/federation/peers"
)

func pairWith(t *testing.T, dir, address string) {
	t.Helper()
	list, err := identity.OpenAllowList(peers.AllowPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(identity.Entry{Key: identity.Generate().Public(), Name: "bob", Address: address}); err != nil {
		t.Fatal(err)
	}
}

// none fails if there is a finding about other hubs.
func none(t *testing.T, findings []doctor.Finding) {
	t.Helper()
	for _, f := range findings {
		if f.Check == "peers" {
			t.Errorf("%+v", f)
		}
	}
}

// last returns the findings from the last one of a check on, because [find] returns the first.
func last(findings []doctor.Finding, check string) []doctor.Finding {
	for i := len(findings) - 1; i >= 0; i-- {
		if findings[i].Check == check {
			return findings[i:]
		}
	}
	return nil
}

func TestNoFindingsWithoutPeers(t *testing.T) {
	dir := place(t, "")
	none(t, examine(t, dir))
	pairWith(t, dir, "")
	expect(t, examine(t, dir), "peers", doctor.Warning, "peers.enabled is not set")
}

func TestWaysToPeers(t *testing.T) {
	dir := place(t, "")
	on := "peers.enabled=true"
	expect(t, examine(t, dir, on), "peers", doctor.Warning, "other hubs cannot be reached")
	expect(t, last(examine(t, dir, on), "peers"), "peers", doctor.Warning, "peers pair KEY")
	pairWith(t, dir, "hub.example.org:49737")
	findings := examine(t, dir, on)
	expect(t, findings, "peers", doctor.OK, "with 1 bootstrap addresses")
	expect(t, last(findings, "peers"), "peers", doctor.OK, "known only while the hub is running")

	taken, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	public := "peers.hyperswarm.public=" + taken.LocalAddr().String()
	expect(t, examine(t, dir, on, public, "peers.hyperswarm.listen="+taken.LocalAddr().String()), "peers", doctor.Failure, "cannot listen on UDP")
	expect(t, examine(t, dir, on, public, "peers.hyperswarm.listen=127.0.0.1:0"), "peers", doctor.OK, "over Hyperswarm, at 127.0.0.1")
	if _, err := os.Stat(peers.KeyPath(dir)); err == nil {
		t.Error("the doctor has made an identity")
	}
}

func TestDamagedPeersFiles(t *testing.T) {
	dir := place(t, "")
	if err := os.WriteFile(peers.KeyPath(dir), fmt.Appendf(nil, "%064d\n", 1), 0o644); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir, "peers.enabled=true"), "peers", doctor.Failure, "chmod 600")
	if err := os.WriteFile(peers.AllowPath(dir), []byte("nobody's key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, dir, "peers.enabled=true"), "peers", doctor.Failure, "pair again")
}

// With a running hub, the state of each paired hub is reported.
func TestPeersOfARunningHub(t *testing.T) {
	dir := place(t, "peers: {enabled: true, hyperswarm: {listen: '127.0.0.1:0', bootstrap: ['127.0.0.1:9']}}\n")
	pairWith(t, dir, "")
	hub(t, dir)
	findings := last(examine(t, dir), "peers")
	expect(t, findings, "peers", doctor.Warning, "bob has not been seen since this hub started")
	expect(t, findings, "peers", doctor.Warning, "has paired with this hub")
}
