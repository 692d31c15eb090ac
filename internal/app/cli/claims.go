package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/local"
)

func (a *app) claimsCommand() *cobra.Command {
	var watch bool
	cmd := command("claims", "Show which agent works on which files",
		a.onHub(func(ctx context.Context, c *client.Client, _ []string) error {
			return a.repeat(ctx, watch, func(ctx context.Context, w io.Writer) error {
				all, err := c.FileClaims(ctx)
				if err != nil {
					return err
				}
				a.claimsListing(time.Now(), all, a.holders(ctx, c, all)).print(a, w, all)
				return nil
			})
		}))
	cmd.Long = `Show the claims of files on this computer: who has claimed which files, why, and until when.
Agents claim files before they change them; the hooks of their programs refuse the edits of
others, and so does git where ` + "`parley guard install`" + ` was run. See docs/file-claims.md.`
	cmd.Example = "  " + a.name + " claims -w\n  " + a.name + " claims break src/main.go"
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print it again whenever it changes, until Ctrl-C")
	cmd.AddCommand(a.breakClaimCommand())
	return cmd
}

func (a *app) breakClaimCommand() *cobra.Command {
	cmd := command("break ID|PATH", "End the claim of an agent, which is told by mail",
		a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := claimID(ctx, c, args[0])
			if err != nil {
				return err
			}
			broken, err := c.BreakFileClaim(ctx, id)
			if err != nil {
				return err
			}
			return a.print(broken, func() {
				about := "it has mail about it"
				if !broken.Notified {
					about = "it could not be notified"
				}
				fmt.Fprintf(a.stdout, "%s no longer holds %s; %s.\n", oneLine(broken.Holder), oneLine(strings.Join(broken.Paths, ", ")), about)
			})
		}))
	cmd.Long = `End a claim of files, so that other agents can claim and change them. The argument is the
claim's id, a part of it that no other has, or the path of a file that is claimed. Its
holder is told by mail; it may claim the files again.`
	cmd.Example = "  " + a.name + " claims break 3f2a1b7c\n  " + a.name + " claims break src/main.go"
	cmd.Args = exactly("ID|PATH")
	cmd.ValidArgsFunction = a.completeFirst(claimIDs)
	return cmd
}

func claimIDs(ctx context.Context, c *client.Client) []string {
	all, err := c.FileClaims(ctx)
	return each(all, err, func(x dialect.FileClaim) string { return described(x.ID, x.Holder+" "+strings.Join(x.Paths, ", ")) })
}

// claimID returns the id of the claim that an id, a part of one, or the path of a file means.
func claimID(ctx context.Context, c *client.Client, arg string) (string, error) {
	if arg == "" {
		return "", usage("the argument is empty; give the id of a claim, or the path of a file")
	}
	if _, err := os.Lstat(arg); err != nil && !strings.ContainsAny(arg, `/\.`) {
		return arg, nil
	}
	path, err := filepath.Abs(arg)
	if err != nil {
		return "", err
	}
	held, err := c.CheckFiles(ctx, dialect.FileCheckParams{Files: targets(ctx, []string{path})})
	if err != nil {
		return "", err
	}
	var ids []string
	for _, h := range held {
		ids = append(ids, h.ID)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	switch len(ids) {
	case 0:
		return "", &failure{Exit: exitFailure, Kind: "not-found", Message: "no agent has claimed " + oneLine(arg), Remedy: "list the claims with: " + local.Program() + " claims"}
	case 1:
		return ids[0], nil
	}
	return "", usage("%s is claimed more than once; name one of these claims: %s", oneLine(arg), oneLine(strings.Join(ids, ", ")))
}

// holders returns the addresses of the agents that have claimed files, by their GUIDs: two sessions may have the same handle. Those that the
// hub does not say are missing.
func (a *app) holders(ctx context.Context, c *client.Client, all []dialect.FileClaim) map[string]string {
	if len(all) == 0 || a.json() {
		return nil
	}
	agents, err := c.ListAgents(ctx, dialect.AgentsListParams{IncludeCards: new(false)})
	if err != nil {
		return nil
	}
	addresses := make(map[string]string)
	for _, x := range agents {
		if x.GUID != "" {
			addresses[x.GUID] = addressOf(x)
		}
	}
	return addresses
}

func (a *app) claimsListing(now time.Time, all []dialect.FileClaim, holders map[string]string) listing[dialect.FileClaim] {
	shorten := shortIDs(all, func(x dialect.FileClaim) string { return x.ID })
	return listing[dialect.FileClaim]{
		none: "No agent has claimed files.",
		columns: []column{
			{heading: "AGENT", weight: 1}, {heading: "FILES", weight: 3, least: 12}, {heading: "PROJECT", weight: 1}, {heading: "MODE", extra: true},
			{heading: "UNTIL"}, {heading: "CLAIM"}, {heading: "WHY", weight: 2, least: 12},
		},
		row: func(x dialect.FileClaim) []string {
			return []string{oneLine(cmp.Or(holders[x.HolderGUID], x.Holder)), oneLine(strings.Join(x.Paths, ", ")), oneLine(x.Repository), oneLine(x.Mode), claimedUntil(now, x.Until), oneLine(shorten(x.ID)), oneLine(x.Why)}
		},
		paint: a.paintFirst,
	}
}

// claimedUntil returns when a claim ends: the time of day, of another day with its date.
func claimedUntil(now time.Time, until string) string {
	at := store.ParseTime(until).Local()
	if now.Local().YearDay() == at.YearDay() {
		return at.Format("15:04")
	}
	return at.Format("2006-01-02 15:04")
}
