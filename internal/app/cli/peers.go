package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/federation/peers"
)

const peersLong = `Pair with hubs on other machines: paired hubs use each other's agents. A hub is
identified by its key. Each of the two hubs must pair with the other's key; other hubs
get no answer. Set peers.enabled in config.yaml, and see docs/peers-setup.md. A running hub
applies a change within two seconds.`

func (a *app) peersCommand() *cobra.Command {
	return group("peers", "Pair with hubs on other machines", peersLong,
		a.peersPairCommand(), a.peersListCommand(), a.peersRemoveCommand())
}

// peerJSON is the JSON of a peer.
type peerJSON struct {
	Name    string `json:"name"`
	Key     string `json:"key"`
	Address string `json:"address,omitempty"`
}

func peerOf(e identity.Entry) peerJSON {
	return peerJSON{Name: peers.NameOf(e), Key: e.Key.String(), Address: e.Address}
}

// listedJSON is a peer in `peers list`, with its status if the running hub knows it.
type listedJSON struct {
	peerJSON
	Status *dialect.PeerStatus `json:"status,omitempty"`
}

// peersNow asks the running hub for the status of its peers. If the status is not known, it
// returns nil and the reason, since the list is useful without a hub.
func (a *app) peersNow(cmd *cobra.Command) (now *dialect.PeersStatus, why string) {
	ctx, cancel := a.interruptible(cmd.Context())
	defer cancel()
	ctx, cancelTimeout := context.WithTimeout(ctx, peersTimeout)
	defer cancelTimeout()
	c, err := a.connect(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return nil, "the hub is not running; start it with: " + a.self() + " start"
	}
	if err != nil {
		return nil, err.Error()
	}
	defer c.Close()
	status, err := c.Status(ctx)
	switch {
	case err != nil:
		return nil, err.Error()
	case status.Peers == nil:
		return nil, "the hub does not connect to others: set peers.enabled in its configuration and restart it"
	}
	return status.Peers, ""
}

// peersTimeout bounds the wait for the hub's status.
const peersTimeout = 5 * time.Second

// stateOf describes a peer's status.
func (a *app) stateOf(s *dialect.PeerStatus) string {
	heard := "not seen since this hub started"
	if s.LastHeard != nil {
		heard = "last seen " + display.Duration(time.Since(s.LastHeard.Time)) + " ago"
	}
	state := a.style.red("down") + ", " + heard
	if s.Connected {
		agents := "no agents"
		if len(s.Agents) > 0 {
			agents = oneLine(strings.Join(s.Agents, " "))
		}
		state = a.style.green("up") + " over " + oneLine(strings.Join(s.Via, " and ")) + ", " + heard + ": " + agents
	}
	if s.Problem != "" {
		state += "; problem: " + oneLine(s.Problem)
	}
	return state
}

// allowList opens the hub's allow-list. It also returns the hub's configuration.
func (a *app) allowList(ctx context.Context) (*identity.AllowList, *config.Loaded, error) {
	cfg, err := a.load(ctx)
	if err != nil {
		return nil, nil, err
	}
	list, err := identity.OpenAllowList(peers.AllowPath(cfg.DataDir))
	if err != nil {
		return nil, nil, peersFailure(err)
	}
	return list, cfg, nil
}

func peersFailure(err error) error {
	return &failure{Exit: exitFailure, Kind: "peers", Message: err.Error()}
}

func (a *app) peersPairCommand() *cobra.Command {
	var name, at string
	cmd := command("pair KEY", "Pair with a hub: each uses the other's agents",
		func(cmd *cobra.Command, args []string) error {
			key, err := identity.ParsePublicKey(args[0])
			if err != nil {
				return usage("%v", err)
			}
			if name != "" && !peers.ValidName(name) {
				return usage("the name %q is not 1 to 24 lower-case letters, digits and -", name)
			}
			list, cfg, err := a.allowList(cmd.Context())
			if err != nil {
				return err
			}
			own, err := identity.Load(peers.KeyPath(cfg.DataDir))
			if err != nil {
				return peersFailure(err)
			}
			if own.Public() == key {
				return usage("this is the hub's own key; pair with another hub's key")
			}
			entry := identity.Entry{Key: key, Name: name, Address: at}
			if err := entry.Check(); err != nil {
				return usage("%v", err)
			}
			for _, e := range list.Entries() {
				if e.Key != key && peers.NameOf(e) == peers.NameOf(entry) {
					return usage("another peer is called %s: choose a name with --name, or remove it first", peers.NameOf(e))
				}
			}
			if err := list.Add(entry); err != nil {
				return peersFailure(err)
			}
			return a.print(peerOf(entry), func() {
				fmt.Fprintf(a.stdout, "paired with %s\n", peers.NameOf(entry))
				a.printNextPairing(own.Public(), cfg)
			})
		})
	cmd.Example = "  " + a.name + " peers pair 4f1c…e2 --name bob                      # its agents become bob.claude-code and so on\n" +
		"  " + a.name + " peers pair 4f1c…e2 --name bob --at 203.0.113.7:49737  # a hub with peers.hyperswarm.public"
	cmd.Flags().StringVar(&at, "at", "", "host:port at which it can be reached, if it has peers.hyperswarm.public; hubs find each other through it")
	cmd.Flags().StringVar(&name, "name", "", "its name here; its agents are then NAME.AGENT (default the key's first 8 digits)")
	return cmd
}

// printNextPairing prints what is left to do after this hub has paired with another.
func (a *app) printNextPairing(own identity.PublicKey, cfg *config.Loaded) {
	there := fmt.Sprintf("%s peers pair %s", a.name, own)
	if public := cfg.Peers.Hyperswarm.Public; public != "" {
		there += " --at " + public
	}
	a.note("On the other machine, run: %s", there)
	if !cfg.Peers.Enabled {
		a.note("Then set peers.enabled in %s and restart the hub.", cfg.File)
	}
}

func (a *app) peersListCommand() *cobra.Command {
	cmd := command("list", "Show this hub's key, and the paired hubs",
		func(cmd *cobra.Command, _ []string) error {
			list, cfg, err := a.allowList(cmd.Context())
			if err != nil {
				return err
			}
			own, err := identity.Load(peers.KeyPath(cfg.DataDir))
			if err != nil {
				return peersFailure(err)
			}
			now, why := a.peersNow(cmd)
			paired := []listedJSON{}
			for _, e := range list.Entries() {
				paired = append(paired, listedJSON{peerOf(e), statusOf(now, e.Key.String())})
			}
			if a.json() {
				writeJSON(a.stdout, struct {
					Key      string       `json:"key"`
					RelayKey string       `json:"relayKey"`
					Running  bool         `json:"running"`
					Peers    []listedJSON `json:"peers"`
				}{own.Public().String(), peers.RelayKey(own).String(), now != nil, paired})
				return nil
			}
			fmt.Fprintf(a.stdout, "this hub  %s\n", own.Public())
			if cfg.Peers.Hyperswarm.Relay {
				fmt.Fprintf(a.stdout, "its relay %s\n", peers.RelayKey(own))
			}
			for _, p := range paired {
				fmt.Fprintln(a.stdout, strings.TrimSpace(fmt.Sprintf("%-24s  %s  %s", p.Name, p.Key, p.Address)))
				if p.Status != nil {
					fmt.Fprintf(a.stdout, "  %s\n", a.stateOf(p.Status))
				}
			}
			if len(paired) > 0 && why != "" {
				a.note("Their status is unknown: %s", why)
			}
			return nil
		})
	cmd.Long = "Show this hub's key, the paired hubs, and their status: the transport, when they were\n" +
		"last seen, and their agents. A hub that is up need not have paired with this one; if it\n" +
		"has not, it does not answer."
	return cmd
}

// statusOf finds a peer's status, nil if it is not known, as after pairing.
func statusOf(now *dialect.PeersStatus, key string) *dialect.PeerStatus {
	if now == nil {
		return nil
	}
	if i := slices.IndexFunc(now.Hubs, func(s dialect.PeerStatus) bool { return s.Key == key }); i >= 0 {
		return &now.Hubs[i]
	}
	return nil
}

func (a *app) peersRemoveCommand() *cobra.Command {
	cmd := command("remove PEER", "End the pairing with a hub, by its name or key",
		func(cmd *cobra.Command, args []string) error {
			list, _, err := a.allowList(cmd.Context())
			if err != nil {
				return err
			}
			e, err := a.findPeer(cmd.Context(), list.Entries(), args[0])
			if err != nil {
				return err
			}
			if _, err := list.Remove(e.Key); err != nil {
				return peersFailure(err)
			}
			return a.print(peerOf(e), func() { fmt.Fprintf(a.stdout, "removed %s\n", peers.NameOf(e)) })
		})
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if list, _, err := a.allowList(cmd.Context()); err == nil && len(args) == 0 { // no completion is better than an error
			for _, e := range list.Entries() {
				names = append(names, described(peers.NameOf(e), strings.TrimSpace(e.Key.String()[:8]+" "+e.Address)))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// findPeer returns the peer that given names: by its name or key, or by a beginning of one that no other peer has.
func (a *app) findPeer(ctx context.Context, entries []identity.Entry, given string) (identity.Entry, error) {
	names := idsOf(entries, peers.NameOf)
	at := slices.IndexFunc(entries, func(e identity.Entry) bool {
		return peers.NameOf(e) == given || strings.EqualFold(e.Key.String(), given)
	})
	if at < 0 && given != latest { // peers have no order, so none is the latest
		name, err := idKind{
			noun: "peer",
			find: func(_ context.Context, part string, limit int) (found []string, _ error) {
				for _, e := range entries {
					if name := peers.NameOf(e); len(found) < limit && (hasPrefixFold(name, part) || hasPrefixFold(e.Key.String(), part)) {
						found = append(found, name)
					}
				}
				return found, nil
			},
		}.resolve(ctx, given)
		if err != nil {
			return identity.Entry{}, err
		}
		at = slices.Index(names, name)
	}
	if at < 0 {
		return identity.Entry{}, &failure{Exit: exitUsage, Kind: "usage",
			Message: strings.TrimRight(fmt.Sprintf("no peer is called %q; %s", given, didYouMean(given, names)), "; "), Remedy: "see: " + a.self() + " peers list"}
	}
	return entries[at], nil
}
