package daemon

import (
	"context"
	"log/slog"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
)

// openPeers starts to connect to paired hubs.
func (d *daemon) openPeers(ctx context.Context) error {
	cfg := d.cfg.Peers
	if !cfg.Enabled {
		return nil
	}
	opts := peers.Options{
		Hub: d.hub, DataDir: d.cfg.DataDir, Version: d.opts.Version, Prefix: cfg.Prefix, Tools: d.tools,
		Hyperswarm: hyperswarm(cfg.Hyperswarm),
		PeerTier:   agent.TierOf(cfg.PeerTier), CrossSandbox: d.cfg.Node.CrossSandbox, Logger: d.log, Damaged: d.fileDamaged,
	}
	switch {
	case cfg.NATS.URL != "":
		shared, err := bus.Dial(peersBus(cfg.NATS, d.log))
		if err != nil {
			return err
		}
		d.onClose(func() error { shared.Close(); return nil })
		opts.NATS = shared
	case d.cfg.Bus.URL != "": // other hubs cannot reach an embedded server
		opts.NATS = d.bus.Conn()
	}
	if d.audit != nil {
		opts.Audit = d.audit
	}
	n, err := peers.Open(ctx, opts)
	if err != nil {
		return &Error{Code: CodeStart, Message: "cannot join other hubs: " + err.Error(), Remedy: "correct it, or set peers.enabled to false", Err: err}
	}
	d.peers = n
	d.onCloseWithin(nodeTimeout, n.Close)
	d.log.Info("paired hubs can reach this one", "key", n.Key(), "nats", opts.NATS != nil, "hyperswarm", opts.Hyperswarm != nil, "public", n.Public())
	return nil
}

// peersBus returns the NATS server that connects the hubs and stores nothing.
func peersBus(c config.PeersNATS, log *slog.Logger) bus.Config {
	return bus.Config{URL: bus.Secret(c.URL), Name: "parley-hub peers", Logger: log.With("for", "peers"), Credentials: credentials(c.NATSLogin)}
}

// peersStatus returns the status of the paired hubs; nil if peers are disabled.
func (d *daemon) peersStatus() *dialect.PeersStatus {
	if d.peers == nil {
		return nil
	}
	status := &dialect.PeersStatus{Key: d.peers.Key().String(), Hubs: []dialect.PeerStatus{}}
	if public := d.peers.Public(); public.IsValid() {
		status.Public = public.String()
	}
	for _, p := range d.peers.Status() {
		s := dialect.PeerStatus{Name: p.Name, Key: p.Key.String(), Connected: len(p.Via) > 0, Via: []string{}, Agents: append([]string{}, p.Agents...)}
		for _, way := range p.Via {
			s.Via = append(s.Via, string(way))
		}
		if !p.LastSeen.IsZero() {
			s.LastHeard = &dialect.Time{Time: p.LastSeen}
		}
		if p.Problem != nil {
			s.Problem = p.Problem.Error()
		}
		status.Hubs = append(status.Hubs, s)
	}
	return status
}

// hyperswarm converts the configuration of Hyperswarm, which config.Load has checked; nil if it is off.
func hyperswarm(h config.Hyperswarm) *peers.Hyperswarm {
	if !h.Enabled {
		return nil
	}
	listen, _ := h.ListenAddr()
	public, _ := h.PublicAddr()
	relays, _ := h.RelayKeys()
	return &peers.Hyperswarm{
		Listen: listen, Public: public, Bootstrap: h.Bootstrap, Network: h.Network, Capabilities: h.Capabilities, Relay: h.Relay, Relays: relays,
	}
}
