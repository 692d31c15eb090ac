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
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
)

// peers examines what lets this hub and those on other machines use each other's
// agents. Of the others themselves only a hub that runs knows something.
func (p Patient) peers(hub *dialect.Status) []Finding {
	list, err := identity.OpenAllowList(peers.AllowPath(p.Config.DataDir))
	if err != nil {
		return []Finding{{Check: "peers", Level: Failure, Message: err.Error(), Remedy: "mend the file, or move it away and pair again"}}
	}
	entries, cfg := list.Entries(), p.Config.Peers
	switch {
	case !cfg.Enabled && len(entries) == 0:
		return nil // who wants none needs no word
	case !cfg.Enabled:
		return []Finding{{Check: "peers", Level: Warning, Message: fmt.Sprintf("%d hubs are paired, and peers.enabled is not set", len(entries)),
			Remedy: "set peers.enabled: true and restart the hub"}}
	}
	if f, ill := p.identity(); ill {
		return []Finding{f}
	}
	findings := []Finding{p.waysToPeers(entries, hub != nil)}
	if len(entries) == 0 {
		return append(findings, Finding{Check: "peers", Level: Warning, Message: "no hub is paired: none is let in, and none is used",
			Remedy: "exchange keys and run, at both: " + p.Program + " peers pair KEY"})
	}
	switch {
	case hub == nil:
		return append(findings, good("peers", "%d hubs are paired; a hub that runs knows how they are", len(entries)))
	case hub.Peers == nil:
		return append(findings, Finding{Check: "peers", Level: Warning, Message: "the running hub was started without peers.enabled", Remedy: "run: " + p.Program + " stop, then " + p.Program + " start"})
	}
	for _, s := range hub.Peers.Hubs {
		findings = append(findings, p.describePeer(s))
	}
	return findings
}

// identity examines the hub's key, if it has one: the first start makes it.
func (p Patient) identity() (f Finding, ill bool) {
	path := peers.KeyPath(p.Config.DataDir)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return f, false
	}
	if _, err := identity.Load(path); err != nil {
		return Finding{Check: "peers", Level: Failure, Message: err.Error(), Remedy: "the hub does not start with peers.enabled before that is mended"}, true
	}
	return f, false
}

// waysToPeers says by which ways other hubs are met.
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
		begin := len(cfg.Hyperswarm.Bootstrap)
		for _, e := range entries {
			if e.Address != "" {
				begin++
			}
		}
		switch {
		case cfg.Hyperswarm.Public != "":
			if err := udpFree(cfg.Hyperswarm); err != nil && !running {
				return Finding{Check: "peers", Level: Failure, Message: err.Error(), Remedy: "stop what has the port, or choose another with peers.hyperswarm.public and listen"}
			}
			ways = append(ways, "over Hyperswarm, at "+cfg.Hyperswarm.Public)
		case begin > 0:
			ways = append(ways, fmt.Sprintf("over Hyperswarm, beginning at %d addresses", begin))
		}
	}
	if len(ways) == 0 {
		return Finding{Check: "peers", Level: Warning, Message: "there is no way to other hubs: no address to begin at, no address of its own, no NATS server that hubs share",
			Remedy: "give a hub's address with " + p.Program + " peers pair KEY --at HOST:PORT, or set peers.hyperswarm.public or peers.nats.url"}
	}
	return good("peers", "other hubs are met %s", strings.Join(ways, ", and "))
}

// udpFree finds out by binding whether a hub could have its port.
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
		return fmt.Errorf("UDP %s cannot be listened on: %w", at, err)
	}
	return c.Close()
}

func (p Patient) describePeer(s dialect.PeerStatus) Finding {
	if s.Connected && s.Problem == "" {
		return good("peers", "%s is heard over %s, with %d agents", s.Name, strings.Join(s.Via, " and "), len(s.Agents))
	}
	f := Finding{Check: "peers", Level: Warning, Message: s.Name + " has not been heard since this hub started",
		Remedy: "see whether it runs, can be reached, and has paired with this hub: run there: " + p.Program + " peers list"}
	if s.LastHeard != nil {
		f.Message = fmt.Sprintf("%s was heard last at %s", s.Name, s.LastHeard.Format(time.RFC3339))
	}
	if s.Problem != "" {
		f.Message = fmt.Sprintf("what %s says is not taken over: %s", s.Name, s.Problem)
		f.Remedy = "compare the clocks of both machines, the versions of both hubs, and the names of this one's agents with PEER.AGENT of the other's"
	}
	return f
}
