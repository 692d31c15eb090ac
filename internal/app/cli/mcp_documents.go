package cli

import (
	"context"
	"errors"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/documents"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// documentsAtHub gives the MCP server access to the documents of the running hub. Each call
// makes its own connection, so the hub may restart between calls.
type documentsAtHub struct {
	a                  *app
	mcpserver.Presence // of the hub
	tools              *hubTools
}

func (h documentsAtHub) Documents(ctx context.Context) (names []string, err error) {
	err = h.read(ctx, func(c *client.Client) error { names, err = c.Documents(ctx); return err })
	return names, err
}

func (h documentsAtHub) Document(ctx context.Context, name string) (d *documents.Content, err error) {
	err = h.read(ctx, func(c *client.Client) error { d, err = c.Document(ctx, name); return err })
	return d, err
}

func (h documentsAtHub) AwaitDocument(ctx context.Context, name, seen string) (d *documents.Content, err error) {
	err = h.read(ctx, func(c *client.Client) error { d, err = c.AwaitDocument(ctx, name, seen); return err })
	return d, err
}

func (h documentsAtHub) EditDocument(ctx context.Context, name string, edits []documents.Edit) (d *documents.Content, err error) {
	var c *client.Client
	err = h.tools.retry(ctx, func() (err error) { c, err = h.dial(ctx); return err })
	if err != nil {
		return nil, documentFailure(err)
	}
	defer c.Close()
	d, err = c.EditDocument(ctx, name, edits)
	if hasStopped(err) {
		return nil, &mcpserver.Failure{Category: "UncertainError", Message: "The hub stopped before it answered: all of the edit may be in the document, or nothing.",
			Remedy: "Check with read_document before you make the edit again.", Err: err}
	}
	return d, documentFailure(err)
}

// read calls f with a connection to the hub, and again at the next hub if this one stops meanwhile.
func (h documentsAtHub) read(ctx context.Context, f func(*client.Client) error) error {
	return documentFailure(h.tools.retry(ctx, func() error {
		c, err := h.dial(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		return f(c)
	}))
}

func (h documentsAtHub) dial(ctx context.Context) (*client.Client, error) {
	cfg, err := h.a.load(ctx)
	if err != nil {
		return nil, err
	}
	c, err := h.a.dial(ctx, cfg)
	if err == nil || daemon.CodeOf(err) == daemon.CodeOtherHub {
		return c, err
	}
	return nil, &mcpserver.Failure{Category: "ConnectionError", Message: "The hub stores the documents, and it is not running.",
		Remedy: "Ask the user to run `" + local.Program() + " start`, then try again.", Err: err}
}

// hasStopped reports whether a hub did not answer a call, or not with a result, because it stops.
func hasStopped(err error) bool {
	e, ok := errors.AsType[*jsonrpc.Error](err)
	return ok && e.Code == dialect.CodeAgentUnavailable || errors.Is(err, client.ErrLost)
}

// documentFailure converts the hub's answer to the error that the hub's own MCP server gets.
func documentFailure(err error) error {
	if _, ok := errors.AsType[*mcpserver.Failure](err); !ok && hasStopped(err) {
		return &mcpserver.Failure{Category: "ConnectionError", Message: "The hub stopped before it answered.", Remedy: "Try again in a few seconds.", Err: err}
	}
	e, ok := errors.AsType[*jsonrpc.Error](err)
	if !ok {
		return err
	}
	switch details := e.Details(); details.Code {
	case codeDocumentNotFound:
		return &documents.Error{Code: documents.CodeNotFound, Message: e.Message, Remedy: details.Remedy}
	case dialect.CodeOutcomeUnknown:
		return &documents.Error{Code: documents.CodeUncertain, Message: e.Message, Remedy: details.Remedy}
	case "DOCUMENT_DAMAGED":
		return &documents.Error{Code: documents.CodeDamaged, Message: e.Message, Remedy: details.Remedy}
	case "SERVER_BUSY":
		return &documents.Error{Code: documents.CodeStorage, Message: e.Message, Remedy: details.Remedy}
	case "INVALID_PARAMS":
		return &mcpserver.Failure{Category: mcpserver.ValidationError, Message: e.Message, Remedy: details.Remedy, Err: err}
	}
	return err
}
