package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
)

func (a *app) sendersCommand() *cobra.Command {
	var revoke string
	cmd := command("senders", "List or revoke who may always give tasks to your sessions", nil)
	cmd.RunE = a.onHub(func(ctx context.Context, c *client.Client, _ []string) error {
		if cmd.Flags().Changed("revoke") {
			return a.revokeSender(ctx, c, revoke)
		}
		all, err := c.Senders(ctx)
		if err != nil {
			return err
		}
		a.sendersListing(time.Now()).print(a, a.stdout, all)
		return nil
	})
	cmd.Long = `List the senders outside whose tasks your open sessions and connected programs get without a question: you have
answered "always" when you were asked about them. sessions.outside and sessions.clients in the
hub's configuration decide who is asked about.

With --revoke, you are asked again about the sender's next task.`
	cmd.Example = "  " + a.name + ` tasks --state auth-required
  ` + a.name + ` send --task TASK always
  ` + a.name + ` senders
  ` + a.name + ` senders --revoke 3f2a`
	cmd.Flags().StringVar(&revoke, "revoke", "", "no longer allow the sender with this id, or the only one whose id begins so")
	a.complete(cmd, "revoke", senderIDs)
	return cmd
}

func (a *app) revokeSender(ctx context.Context, c *client.Client, id string) error {
	if id == "" {
		return usage("the id is empty; list the ids with: %s senders", a.self())
	}
	x, err := c.RevokeSender(ctx, id)
	if err != nil {
		return err
	}
	return a.print(x, func() {
		fmt.Fprintf(a.stdout, "You are asked again about %s %s.\n", oneLine(x.Kind), oneLine(x.Sender))
	})
}

func (a *app) sendersListing(now time.Time) listing[dialect.AllowedSender] {
	return listing[dialect.AllowedSender]{
		none: "No sender is always allowed.",
		columns: []column{
			{heading: "ID"}, {heading: "KIND"}, {heading: "SENDER", weight: 2, least: 12}, {heading: "AGE"}, {heading: "CALLS ITSELF", weight: 1, extra: true},
		},
		row: func(x dialect.AllowedSender) []string {
			return []string{oneLine(x.ID), oneLine(x.Kind), oneLine(x.Sender), age(now, x.Since.Time), oneLine(x.Label)}
		},
	}
}
