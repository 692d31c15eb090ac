package cli

import (
	"bytes"
	"cmp"
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
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/documents"
)

func (a *app) docCommand() *cobra.Command {
	cmd := group("doc", "Read and edit the documents that agents, people and browsers share",
		`Read and edit the documents that agents, people and browsers share. All of them can
edit at the same time; every copy converges to the same content.

Browser pages with stock yjs and y-websocket connect to ws://HUB/documents. If the
hub requires a token, the page offers the subprotocols parley.sync and
parley.token.TOKEN.`,
		a.docListCommand(), a.docShowCommand(), a.docEditCommand(), a.docWatchCommand(), a.docShareCommand(), a.docCompactCommand())
	cmd.Args = exactly()
	cmd.RunE = func(*cobra.Command, []string) error {
		return usage("missing a command: list, show, edit, watch, share or compact")
	}
	return cmd
}

// onDocument returns a command whose argument is the name of a document.
func (a *app) onDocument(name, short string, run runE) *cobra.Command {
	cmd := command(name+" DOCUMENT", short, run)
	cmd.Args = exactly("the document's name")
	cmd.ValidArgsFunction = a.completeFirst(documentNames)
	return cmd
}

func (a *app) docListCommand() *cobra.Command {
	return command("list", "List the documents",
		hubCall(a, func(ctx context.Context, c *client.Client, _ []string) ([]string, error) {
			return c.Documents(ctx)
		}, func(names []string) {
			if len(names) == 0 {
				fmt.Fprintln(a.stdout, "No documents.")
			}
			for _, name := range names {
				fmt.Fprintln(a.stdout, oneLine(name))
			}
		}))
}

func (a *app) docShowCommand() *cobra.Command {
	return a.onDocument("show", "Print a document as JSON",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*documents.Content, error) {
			return onDocumentLike(ctx, c, args[0], c.Document)
		}, a.printContent))
}

// onDocumentLike calls do with the name of a document. If there is none with the given name, it calls do again with the
// only name that begins with it.
func onDocumentLike[T any](ctx context.Context, c *client.Client, given string, do func(context.Context, string) (T, error)) (T, error) {
	v, err := do(ctx, given)
	rpc, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok || rpc.Details().Code != codeDocumentNotFound {
		return v, err
	}
	names, lookup := c.Documents(ctx)
	if lookup != nil || given == latest { // documents have no order, so none is the latest
		return v, cmp.Or(lookup, err)
	}
	name, lookup := idKind{noun: "document", find: inList(func(context.Context) ([]string, error) { return names, nil })}.resolve(ctx, given)
	if near := didYouMean(given, names); lookup == nil && name == given && near != "" {
		lookup = &failure{Exit: exitNotFound, Kind: "document-not-found", Message: fmt.Sprintf("there is no document %q; %s", given, strings.TrimSpace(near)),
			Remedy: "list them with: " + local.Program() + " doc list; the first edit creates one"}
	}
	if lookup != nil || name == given {
		return v, cmp.Or(lookup, err)
	}
	return do(ctx, name)
}

// printContent prints a document's content, indented.
func (a *app) printContent(d *documents.Content) {
	var b bytes.Buffer
	if err := json.Indent(&b, d.Content, "", "  "); err != nil {
		b.Reset()
		b.Write(d.Content)
	}
	fmt.Fprintf(a.stdout, "%s\n", display.EscapeJSON(b.Bytes()))
}

func (a *app) docEditCommand() *cobra.Command {
	var set, text []string
	cmd := command("edit DOCUMENT [EDITS]", "Edit a document, or create one",
		func(cmd *cobra.Command, args []string) error {
			edits, err := a.docEdits(args[1:], set, text)
			if err != nil {
				return err
			}
			return hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*documents.Content, error) {
				d, err := c.EditDocument(ctx, args[0], edits)
				return d, a.unanswered(err, "all of the edits may be in the document, or none", "doc show "+args[0])
			}, a.printContent)(cmd, args)
		})
	cmd.Long = `Edit a document, or create one, and print the result. All edits of one call are applied
together, or none is.

EDITS is a JSON array, or "-" to read it from standard input:

  {"op": "set",       "path": ["plan", "status"], "value": ANY}
  {"op": "delete",    "path": ["plan", "status"]}
  {"op": "insert",    "path": ["todo"], "values": [ANY, …], "index": 0}
  {"op": "delete",    "path": ["todo"], "index": 0, "count": 1}
  {"op": "text",      "path": ["notes"], "text": "…", "index": 0, "count": 0}
  {"op": "increment", "path": ["runs"], "by": 1}
  {"op": "make",      "path": ["plan", "owners"], "type": "map, array or text"}

A path starts with the name of a root and continues with keys; missing maps are created.
Without an index, text and values are appended, and delete removes the key.`
	cmd.Example = "  " + a.name + ` doc edit plan --set plan.status=open
  ` + a.name + ` doc edit plan --text 'notes=first thoughts'
  ` + a.name + ` doc edit plan '[{"op":"insert","path":["todo"],"values":["test it"]}]'`
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return usage("missing the document's name")
		case 1, 2:
			return nil
		}
		return usage("unexpected argument %q: put all edits into one JSON array", args[2])
	}
	cmd.ValidArgsFunction = a.completeFirst(documentNames)
	cmd.Flags().StringArrayVar(&set, "set", nil, "set `path=value`, the path with dots; the value is JSON, or else text")
	cmd.Flags().StringArrayVar(&text, "text", nil, "append to a text, `path=text`")
	return cmd
}

// maxEdits bounds the edits read from standard input, in bytes.
const maxEdits = 8 << 20

// docEdits returns the edits of the arguments behind the document's name, then those of the flags --set and --text.

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
				return nil, usage("the edits are larger than %d MiB; split them", maxEdits>>20)
			}
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		d.UseNumber()
		switch err := d.Decode(&edits); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, usage("the edits are not a JSON array of edits: the end is missing")
		case err != nil:
			return nil, usage("the edits are not a JSON array of edits: %v", err)
		case !ended(d):
			return nil, usage("unexpected text after the JSON array of edits")
		}
	}
	for _, s := range set {
		path, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usage("--set needs path=value, not %q", s)
		}
		edits = append(edits, documents.Edit{Op: documents.OpSet, Path: strings.Split(path, "."), Value: jsonOrText(value)})
	}
	for _, s := range text {
		path, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, usage("--text needs path=text, not %q", s)
		}
		edits = append(edits, documents.Edit{Op: documents.OpText, Path: strings.Split(path, "."), Text: value})
	}
	if len(edits) == 0 {
		return nil, usage("missing the edits: use --set path=value, --text path=text, or a JSON array")
	}
	return edits, nil
}

// jsonOrText decodes a JSON value; it returns s itself if s is not one.
func jsonOrText(s string) any {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || !ended(d) {
		return s
	}
	return v
}

// ended reports whether d has no more input.
func ended(d *json.Decoder) bool {
	_, err := d.Token()
	return errors.Is(err, io.EOF)
}

func (a *app) docWatchCommand() *cobra.Command {
	cmd := a.onDocument("watch", "Print a document now and after each change, until Ctrl-C",
		a.onHub(func(ctx context.Context, c *client.Client, args []string) error {
			name, seen, retry := args[0], "", hubRetry{app: a, notice: "The hub is down; changes are shown when it is up again."}
			for {
				d, err := onDocumentLike(ctx, c, name, func(ctx context.Context, found string) (*documents.Content, error) {
					name = found
					return c.AwaitDocument(ctx, name, seen)
				})
				if ctx.Err() != nil {
					return nil // by Ctrl-C
				}
				if err := retry.after(ctx, err); err != nil {
					return err
				}
				if err == nil && d.Version != seen {
					_ = a.print(d, func() { a.printContent(d) }) // returns nil
					seen = d.Version
				}
			}
		}))
	cmd.Long = `Print a document now and after each change, until Ctrl-C. Changes in quick succession may
be printed as one. While the hub is down the command retries, for up to a minute.`
	return cmd
}

func (a *app) docShareCommand() *cobra.Command {
	cmd := command("share DOCUMENT [AGENT ROLE]", "Set or show which remote agents may copy and change a document",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (map[string]documents.Role, error) {
			if len(args) == 1 {
				return onDocumentLike(ctx, c, args[0], c.DocumentShares)
			}
			role := documents.Role(args[2])
			if role == "none" {
				role = ""
			}
			return onDocumentLike(ctx, c, args[0], func(ctx context.Context, name string) (map[string]documents.Role, error) {
				roles, err := c.ShareDocument(ctx, name, args[1], role)
				return roles, a.unanswered(err, "the agent may have the new role or the former", "doc share "+name)
			})
		}, a.printShares))
	cmd.Long = `Set which agents of other processes may keep a copy of a document and change it, or
show the current roles. Remote agents have no access by default; agents of this hub
need no role.

ROLE is reader, writer, owner (may also assign roles) or none. An agent reaches the
hub at its card "hub-documents". Over the hub's HTTP server, any client with the
hub's token can use any name; an agent of a peer is NAME@KEY, which is verified.`
	cmd.Example = "  " + a.name + ` doc share plan mars writer
  ` + a.name + ` doc share plan mars none
  ` + a.name + ` doc share plan`
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 && len(args) != 3 {
			return usage("share needs a document, or a document, an agent and a role")
		}
		return nil
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return a.ask(cmd, documentNames)
		case 2:
			return []string{string(documents.RoleReader), string(documents.RoleWriter), string(documents.RoleOwner), "none"}, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

func (a *app) printShares(roles map[string]documents.Role) {
	if len(roles) == 0 {
		fmt.Fprintln(a.stdout, "Not shared with any remote agent.")
	}
	for _, agent := range slices.Sorted(maps.Keys(roles)) {
		fmt.Fprintf(a.stdout, "%s\t%s\n", oneLine(agent), oneLine(string(roles[agent])))
	}
}

func (a *app) docCompactCommand() *cobra.Command {
	cmd := a.onDocument("compact", "Remove a document's history and keep its content",
		hubCall(a, func(ctx context.Context, c *client.Client, args []string) (*dialect.DocumentCompacted, error) {
			return onDocumentLike(ctx, c, args[0], func(ctx context.Context, name string) (*dialect.DocumentCompacted, error) {
				r, err := c.CompactDocument(ctx, name)
				return r, a.unanswered(err, "the document may have a new epoch", "doc show --format json "+name)
			})
		}, func(r *dialect.DocumentCompacted) {
			fmt.Fprintf(a.stdout, "%d of %s left.\n", r.After, text.Count(r.Before, "item"))
		}))
	cmd.Long = `Remove a document's history and keep its content. The history grows with every write.
Compact a document that is rewritten often and has become large, while nobody edits it:
browser pages that have it open are disconnected and lose the changes that they have not
sent. They must load the page again, with the document's new epoch (parley doc show
--format json) as the parameter epoch of the address.`
	return cmd
}

// unanswered converts the error of a change that the hub did not answer: the change may or
// may not have been made. It returns any other error, and nil, unchanged.
func (a *app) unanswered(err error, what, look string) error {
	f := &failure{Remedy: "see: " + a.self() + " " + look}
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
