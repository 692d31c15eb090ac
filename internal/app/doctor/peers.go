package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
)

const checkPeers = "peers"

// peers checks what this hub and the paired hubs need to use each other's agents. Only a running
// hub knows the status of the other hubs.
func (p Patient) peers(hub *dialect.Status) []Finding {
	list, err := identity.OpenAllowList(peers.AllowPath(p.Config.DataDir))
	if err != nil {
		return []Finding{failure(checkPeers, err.Error(), "correct the file, or move it away and pair again")}
	}
	entries, cfg := list.Entries(), p.Config.Peers
	switch {
	case !cfg.Enabled && len(entries) == 0:
		return nil // not used
	case !cfg.Enabled:
		return []Finding{warning(checkPeers, fmt.Sprintf("%d hubs are paired, and peers.enabled is not set", len(entries)), "set peers.enabled: true and restart the hub")}
	}
	if err := p.checkKey(); err != nil {
		return []Finding{failure(checkPeers, err.Error(), "correct this first: the hub does not start with peers.enabled")}
	}
	findings := []Finding{p.waysToPeers(entries, hub != nil)}
	switch {
	case len(entries) == 0:
		return append(findings, warning(checkPeers, "no hub is paired", "exchange keys and run on both machines: "+p.Program+" peers pair KEY"))
	case hub == nil:
		return append(findings, good(checkPeers, "%d hubs are paired; their status is known only while the hub is running", len(entries)))
	case hub.Peers == nil:
		return append(findings, warning(checkPeers, "the running hub was started without peers.enabled", "run: "+p.Program+" stop, then "+p.Program+" start"))
	}
	for _, s := range hub.Peers.Hubs {
		findings = append(findings, p.describePeer(s))
	}
	return findings
}

// checkKey checks the hub's key. A missing key is no error: the first start creates it.
func (p Patient) checkKey() error {
	path := peers.KeyPath(p.Config.DataDir)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := identity.Load(path)
	return err
}

// waysToPeers describes the transports to other hubs.
func (p Patient) waysToPeers(entries []identity.Entry, running bool) Finding {
	cfg := p.Config.Peers
	var ways []string
	switch {
	case cfg.NATS.URL != "":
		ways = append(ways, "on the NATS server of peers.nats.url")
	case p.Config.Bus.URL != "":
		ways = append(ways, "on the NATS server of bus.url")
	}
	if cfg.Hyperswarm.Enabled {
		bootstrap := len(cfg.Hyperswarm.Bootstrap)
		for _, e := range entries {
			if e.Address != "" {
				bootstrap++
			}
		}
		switch {
		case cfg.Hyperswarm.Public != "":
			if err := udpFree(cfg.Hyperswarm); err != nil && !running {
				return failure(checkPeers, err.Error(), "stop the program that uses the port, or choose another with peers.hyperswarm.public and listen")
			}
			ways = append(ways, "over Hyperswarm, at "+cfg.Hyperswarm.Public)
		case bootstrap > 0:
			ways = append(ways, fmt.Sprintf("over Hyperswarm, with %d bootstrap addresses", bootstrap))
		}
	}
	if len(ways) == 0 {
		return warning(checkPeers, "other hubs cannot be reached: there is no bootstrap address, no public address and no shared NATS server",
			"set a hub's address with "+p.Program+" peers pair KEY --at HOST:PORT, or set peers.hyperswarm.public or peers.nats.url")
	}
	return good(checkPeers, "other hubs are reached %s", strings.Join(ways, ", and "))
}

// udpFree checks by binding whether the hub's port is free.
func udpFree(h config.Hyperswarm) error {
	at, err := h.ListenAddr()
	if err != nil {
		return err
	}
	if !at.IsValid() {
		public, err := h.PublicAddr()
		if err != nil {
			return err
		}
		at = netip.AddrPortFrom(netip.IPv4Unspecified(), public.Port())
	}
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return fmt.Errorf("cannot listen on UDP %s: %w", at, err)
	}
	return c.Close()
}

func (p Patient) describePeer(s dialect.PeerStatus) Finding {
	if s.Connected && s.Problem == "" {
		return good(checkPeers, "%s is connected over %s, with %s", s.Name, strings.Join(s.Via, " and "), text.Count(len(s.Agents), "agent"))
	}
	f := warning(checkPeers, s.Name+" has not been seen since this hub started",
		"check that it is running, can be reached, and has paired with this hub; on its machine run: "+p.Program+" peers list")
	if s.LastHeard != nil {
		f.Message = fmt.Sprintf("%s was last seen at %s", s.Name, s.LastHeard.Format(time.RFC3339))
	}
	if s.Problem != "" {
		f.Message = fmt.Sprintf("the agents of %s are not accepted: %s", s.Name, s.Problem)
		f.Remedy = "compare the clocks of both machines and the versions of both hubs, and check that no local agent has a name PEER.AGENT of the other hub"
	}
	return f
}
