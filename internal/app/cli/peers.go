package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/federation/peers"
)

const peersLong = `Say which hubs on other machines may use this hub's agents, and are used from here.
A hub is its key; both hubs have to pair with each other's, and anybody else gets no
answer. Set peers.enabled in config.yaml, and see docs/peers-setup.md. A hub that runs
follows a change within a second or two.`

func (a *app) peersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Pair with hubs on other machines",
		Long:  peersLong,
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.peersPairCommand(), a.peersListCommand(), a.peersRemoveCommand())
	return cmd
}

// peerJSON is one peer as `peers list` has it.
type peerJSON struct {
	Name    string `json:"name"`
	Key     string `json:"key"`
	Address string `json:"address,omitempty"`
}

func peerOf(e identity.Entry) peerJSON {
	return peerJSON{Name: peers.NameOf(e), Key: e.Key.String(), Address: e.Address}
}

// listedJSON is a peer with how it is, where the hub runs and meets others.
type listedJSON struct {
	peerJSON
	Status *dialect.PeerStatus `json:"status,omitempty"`
}

// peersNow asks the running hub how its peers are. It returns why nothing is known
// where that is so: without a hub the list is worth showing all the same.
func (a *app) peersNow(cmd *cobra.Command) (now *dialect.PeersStatus, why string) {
	ctx, cancel := a.interruptible(cmd.Context())
	defer cancel()
	ctx, late := context.WithTimeout(ctx, peersPatience)
	defer late()
	c, err := a.connect(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return nil, "the hub does not run; " + a.self() + " start starts it"
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
		return nil, "the hub meets no others: set peers.enabled in its configuration and restart it"
	}
	return status.Peers, ""
}

// peersPatience bounds the wait for the hub's word on its peers.
const peersPatience = 5 * time.Second

// stateOf says how a peer is.
func (a *app) stateOf(s *dialect.PeerStatus) string {
	heard := "not heard since this hub started"
	if s.LastHeard != nil {
		heard = "heard " + short(time.Since(s.LastHeard.Time)) + " ago"
	}
	state := a.style.red("down") + ", " + heard
	if s.Connected {
		agents := "no agents"
		if len(s.Agents) > 0 {
			agents = strings.Join(s.Agents, " ")
		}
		state = a.style.green("up") + " over " + strings.Join(s.Via, " and ") + ", " + heard + ": " + agents
	}
	if s.Problem != "" {
		state += "; problem: " + plain(s.Problem)
	}
	return state
}

// allowList opens the hub's list, and its data directory's path.
func (a *app) allowList() (*identity.AllowList, string, error) {
	cfg, err := a.load()
	if err != nil {
		return nil, "", err
	}
	list, err := identity.OpenAllowList(peers.AllowPath(cfg.DataDir))
	if err != nil {
		return nil, "", peersFailure(err)
	}
	return list, cfg.DataDir, nil
}

func peersFailure(err error) error {
	return &failure{Exit: exitFailure, Kind: "peers", Message: err.Error()}
}

func (a *app) peersPairCommand() *cobra.Command {
	var name, at string
	cmd := &cobra.Command{
		Use:   "pair KEY",
		Short: "Let a hub use this one's agents, and use its",
		Example: "  " + a.name + " peers pair 4f1c…e2 --name bob                      # its agents become bob.claude-code and so on\n" +
			"  " + a.name + " peers pair 4f1c…e2 --name bob --at 203.0.113.7:49737  # a hub with peers.hyperswarm.public",
		Args: exactly("KEY"),
		RunE: func(_ *cobra.Command, args []string) error {
			key, err := identity.ParsePublicKey(args[0])
			if err != nil {
				return usage("%v", err)
			}
			if name != "" && !peers.ValidName(name) {
				return usage("the name %q is not 1 to 24 lower-case letters, digits and -", name)
			}
			list, dir, err := a.allowList()
			if err != nil {
				return err
			}
			own, err := identity.Load(peers.KeyPath(dir))
			if err != nil {
				return peersFailure(err)
			}
			if own.Public() == key {
				return usage("this is the hub's own key; pair with another's")
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
			if a.json() {
				writeJSON(a.stdout, peerOf(entry))
				return nil
			}
			fmt.Fprintf(a.stdout, "paired with %s\n", peers.NameOf(entry))
			cfg, err := a.load()
			if err != nil {
				return err
			}
			there := fmt.Sprintf("%s peers pair %s", a.name, own.Public())
			if public := cfg.Peers.Hyperswarm.Public; public != "" {
				there += " --at " + public
			}
			a.note("There, run: %s", there)
			if !cfg.Peers.Enabled {
				a.note("Nothing happens before peers.enabled is set in %s, and the hub restarted.", cfg.File)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&at, "at", "", "host:port where it is reached, if it has peers.hyperswarm.public; hubs find each other by it")
	cmd.Flags().StringVar(&name, "name", "", "what to call it; its agents are then NAME.AGENT (default the key's first 8 digits)")
	return cmd
}

func (a *app) peersListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show this hub's key, and the hubs that are paired",
		Args:  exactly(),
		Long: "Show this hub's key, the hubs that are paired, and whether they are heard now: over which\n" +
			"transport, when last, and with which agents. That a hub is up does not say that it has\n" +
			"paired with this one; without that it does not answer.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, dir, err := a.allowList()
			if err != nil {
				return err
			}
			own, err := identity.Load(peers.KeyPath(dir))
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
			cfg, err := a.load()
			if err != nil {
				return err
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
				a.note("Whether they can be reached is not known: %s", why)
			}
			return nil
		},
	}
}

// statusOf finds a peer's status; nil where nothing is known, as of one that was paired
// just now.
func statusOf(now *dialect.PeersStatus, key string) *dialect.PeerStatus {
	if now == nil {
		return nil
	}
	for i := range now.Hubs {
		if now.Hubs[i].Key == key {
			return &now.Hubs[i]
		}
	}
	return nil
}

func (a *app) peersRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove PEER",
		Short: "Let a hub, by its name or key, use this one's agents no more",
		Args:  exactly("PEER"),
		RunE: func(_ *cobra.Command, args []string) error {
			list, _, err := a.allowList()
			if err != nil {
				return err
			}
			for _, e := range list.Entries() {
				if e.Key.String() != strings.ToLower(args[0]) && peers.NameOf(e) != args[0] {
					continue
				}
				if _, err := list.Remove(e.Key); err != nil {
					return peersFailure(err)
				}
				if a.json() {
					writeJSON(a.stdout, peerOf(e))
					return nil
				}
				fmt.Fprintf(a.stdout, "removed %s\n", peers.NameOf(e))
				return nil
			}
			return &failure{Exit: exitUsage, Kind: "usage", Message: fmt.Sprintf("no peer is called %q", args[0]), Remedy: "see: " + a.self() + " peers list"}
		},
	}
}
