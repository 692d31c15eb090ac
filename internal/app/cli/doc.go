package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/documents"
)

func (a *app) docCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doc",
		Short: "Read and edit the documents that agents, people and browsers share",
		Long: `Read and edit the documents that agents, people and browsers share. Everybody edits
at once; what comes of it is the same for all.

A browser page with stock yjs and y-websocket edits along at ws://HUB/documents.
Where the hub needs a token the page offers the subprotocols parley.sync and
parley.token.TOKEN.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			return usage("missing what to do: list, show, edit, watch, share or compact")
		},
	}
	cmd.AddCommand(a.docListCommand(), a.docShowCommand(), a.docEditCommand(), a.docWatchCommand(), a.docShareCommand(), a.docCompactCommand())
	return cmd
}

func (a *app) docListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the documents",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				names, err := c.Documents(ctx)
				if err != nil {
					return err
				}
				if a.json() {
					writeJSON(a.stdout, names)
					return nil
				}
				if len(names) == 0 {
					fmt.Fprintln(a.stdout, "No documents.")
				}
				for _, name := range names {
					fmt.Fprintln(a.stdout, name)
				}
				return nil
			})
		},
	}
}

func (a *app) docShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show DOCUMENT",
		Short: "Print a document as JSON",
		Args:  exactly("the document's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				d, err := c.Document(ctx, args[0])
				if err != nil {
					return err
				}
				a.printDocument(d)
				return nil
			})
		},
	}
}

// printDocument prints the content alone, and with --json what is known of it too.
func (a *app) printDocument(d *documents.Content) {
	if a.json() {
		writeJSON(a.stdout, d)
		return
	}
	var b bytes.Buffer
	if err := json.Indent(&b, d.Content, "", "  "); err != nil {
		b.Reset()
		b.Write(d.Content)
	}
	fmt.Fprintln(a.stdout, b.String())
}

func (a *app) docEditCommand() *cobra.Command {
	var set, text []string
	cmd := &cobra.Command{
		Use:   "edit DOCUMENT [EDITS]",
		Short: "Edit a document, or make one",
		Long: `Edit a document, or make one, and print what it is then. All edits of one call happen
together or not at all.

EDITS is a JSON array, or "-" to read it from standard input:

  {"op": "set",       "path": ["plan", "status"], "value": ANY}
  {"op": "delete",    "path": ["plan", "status"]}
  {"op": "insert",    "path": ["todo"], "values": [ANY, …], "index": 0}
  {"op": "delete",    "path": ["todo"], "index": 0, "count": 1}
  {"op": "text",      "path": ["notes"], "text": "…", "index": 0, "count": 0}
  {"op": "increment", "path": ["runs"], "by": 1}
  {"op": "make",      "path": ["plan", "owners"], "type": "map, array or text"}

A path leads from the root's name through keys; maps on the way are made. Without an
index, text and values go to the end, and delete takes the whole key away.`,
		Example: "  " + a.name + ` doc edit plan --set plan.status=open
  ` + a.name + ` doc edit plan --text 'notes=first thoughts'
  ` + a.name + ` doc edit plan '[{"op":"insert","path":["todo"],"values":["test it"]}]'`,
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return usage("missing the document's name")
			case 1, 2:
				return nil
			}
			return usage("unexpected argument %q: all edits of a call are in one JSON array", args[2])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			edits, err := a.docEdits(args[1:], set, text)
			if err != nil {
				return err
			}
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				d, err := c.EditDocument(ctx, args[0], edits)
				if err != nil {
					return a.unanswered(err, "all of the edits may be in the document, or none", "doc show "+args[0])
				}
				a.printDocument(d)
				return nil
			})
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "set `path=value`, the path with dots; the value is JSON, or else text")
	cmd.Flags().StringArrayVar(&text, "text", nil, "append to a text, `path=text`")
	return cmd
}

// maxEdits bounds what is read from standard input, in bytes.
const maxEdits = 8 << 20

func (a *app) docEdits(args, set, text []string) ([]documents.Edit, error) {
	var edits []documents.Edit
	if len(args) == 1 {
		raw := []byte(args[0])
		if args[0] == "-" {
			var err error
			if raw, err = io.ReadAll(io.LimitReader(a.stdin, maxEdits+1)); err != nil {
				return nil, err
			}
			if len(raw) > maxEdits {
				return nil, usage("the edits are larger than %d MiB; make several changes of them", maxEdits>>20)
			}
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		d.UseNumber()
		switch err := d.Decode(&edits); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, usage("the edits are no JSON array of edits: the end is missing")
		case err != nil:
			return nil, usage("the edits are no JSON array of edits: %v", err)
		case !ended(d):
			return nil, usage("the edits are one JSON array, and something follows it")
		}
	}
	for _, s := range set {
		path, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usage("--set wants path=value, not %q", s)
		}
		edits = append(edits, documents.Edit{Op: documents.OpSet, Path: strings.Split(path, "."), Value: jsonOrText(value)})
	}
	for _, s := range text {
		path, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usage("--text wants path=text, not %q", s)
		}
		edits = append(edits, documents.Edit{Op: documents.OpText, Path: strings.Split(path, "."), Text: value})
	}
	if len(edits) == 0 {
		return nil, usage("missing the edits: say --set path=value, --text path=text, or a JSON array of them")
	}
	return edits, nil
}

// jsonOrText returns a JSON value, or the text itself if it is none.
func jsonOrText(s string) any {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || !ended(d) {
		return s
	}
	return v
}

// ended reports whether nothing follows what was decoded.
func ended(d *json.Decoder) bool {
	_, err := d.Token()
	return errors.Is(err, io.EOF)
}

func (a *app) docWatchCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "watch DOCUMENT",
		Short: "Print a document now and after each change, until Ctrl-C",
		Long: `Print a document now and after each change, until Ctrl-C. Several changes at once may be
printed as one. A hub that goes is waited for, up to a minute.`,
		Args: exactly("the document's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				seen, away := "", a.absence("The hub is away; its changes are shown when it is back.")
				for {
					d, err := c.AwaitDocument(ctx, args[0], seen)
					if ctx.Err() != nil {
						return nil // Ctrl-C is how watching ends
					}
					if err := away.outlast(ctx, err); err != nil {
						return err
					}
					if err == nil && d.Version != seen {
						a.printDocument(d)
						seen = d.Version
					}
				}
			})
		},
	}
}

func (a *app) docShareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "share DOCUMENT [AGENT ROLE]",
		Short: "Say which agents elsewhere may keep a copy of a document, and change it",
		Long: `Say which agents of other processes may keep a copy of a document and change it, or
show who may. Nobody may unless it is said here; agents of this hub need no role.

ROLE is reader, writer, owner (who may also say who else may) or none. An agent
reaches the hub at its card "hub-documents". Over the hub's HTTP server whoever has
the hub's token may come under any name; an agent of a peer is NAME@KEY, which it
has proved.`,
		Example: "  " + a.name + ` doc share plan mars writer
  ` + a.name + ` doc share plan mars none
  ` + a.name + ` doc share plan`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 3 {
				return usage("share wants a document, or a document, an agent and a role")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				if len(args) == 1 {
					roles, err := c.DocumentShares(ctx, args[0])
					if err != nil {
						return err
					}
					a.printShares(roles)
					return nil
				}
				role := documents.Role(args[2])
				if role == "none" {
					role = ""
				}
				roles, err := c.ShareDocument(ctx, args[0], args[1], role)
				if err != nil {
					return a.unanswered(err, "the agent may have the new role or the former", "doc share "+args[0])
				}
				a.printShares(roles)
				return nil
			})
		},
	}
}

func (a *app) printShares(roles map[string]documents.Role) {
	if a.json() {
		writeJSON(a.stdout, roles)
		return
	}
	if len(roles) == 0 {
		fmt.Fprintln(a.stdout, "Shared with no agent elsewhere.")
	}
	for _, agent := range slices.Sorted(maps.Keys(roles)) {
		fmt.Fprintf(a.stdout, "%s\t%s\n", agent, roles[agent])
	}
}

func (a *app) docCompactCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compact DOCUMENT",
		Short: "Begin a document anew, with its content and without its history",
		Long: `Begin a document anew, with its content and without its history, which only grows:
each write leaves a mark. Do it when a document that is rewritten all the time has become
large and nobody edits it: browser pages that have it open are sent away, and what they
had not sent is lost. They must load the page again, with the document's new epoch
(parley doc show --format json) as the parameter epoch of the address.`,
		Args: exactly("the document's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withHub(cmd, func(ctx context.Context, c *client.Client) error {
				r, err := c.CompactDocument(ctx, args[0])
				if err != nil {
					return a.unanswered(err, "the document may have begun a new epoch", "doc show --format json "+args[0])
				}
				if a.json() {
					writeJSON(a.stdout, r)
					return nil
				}
				fmt.Fprintf(a.stdout, "Of %d items %d are left.\n", r.Before, r.After)
				return nil
			})
		},
	}
}

// unanswered says of a change to which the hub gave no answer that it may have been made, and how to see
// that. Any other error it returns as it is.
func (a *app) unanswered(err error, what, look string) error {
	f := &failure{Remedy: "look with: " + a.self() + " " + look}
	switch {
	case errors.Is(err, client.ErrLost):
		f.Exit, f.Kind, f.Message = exitFailure, kindOutcomeUnknown, client.ErrLost.Error()+" before it answered: "+what
	case errors.Is(err, errInterrupted):
		f.Exit, f.Kind, f.Message = exitInterrupted, "interrupted", "interrupted before the hub answered: "+what
	default:
		return err
	}
	return f
}
