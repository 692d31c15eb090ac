package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/documents"
)

// DocumentShareParams set an agent's role in a document; "" removes it.
type DocumentShareParams struct {
	Name  string         `json:"name"`
	Agent string         `json:"agent"`
	Role  documents.Role `json:"role"`
}

// DocumentParams name a document, and for MethodDocumentsWait the version that the caller has.
type DocumentParams struct {
	Name string `json:"name"`
	Seen string `json:"seen,omitempty"`
}

// DocumentEditParams are the edits of one change.
type DocumentEditParams struct {
	Name  string           `json:"name"`
	Edits []documents.Edit `json:"edits"`
	Seen  string           `json:"seen,omitempty"` // the version that the edits are for; another one is refused
}

// documentsPatience bounds the wait of hub/documents/wait.
const documentsPatience = 25 * time.Second

func (s *Service) documentsList(ctx context.Context) ([]string, error) {
	names, err := s.cfg.Documents.Documents(ctx)
	return append([]string{}, names...), err
}

func (s *Service) document(ctx context.Context, name string) (*documents.Content, error) {
	return s.cfg.Documents.Document(ctx, name)
}

// documentsWait answers when the document's version differs from the caller's, or
// with an unchanged document after documentsPatience.
func (s *Service) documentsWait(c *call) action {
	name, seen := c.requiredText("name", maxID), c.text("seen", maxID)
	return func(ctx context.Context) (any, error) {
		waiting, cancel := context.WithTimeout(ctx, documentsPatience)
		defer cancel()
		content, err := s.cfg.Documents.AwaitDocument(waiting, name, seen)
		if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return s.document(ctx, name)
		}
		return content, err
	}
}

func (s *Service) documentsEdit(c *call) action {
	name, seen, raw := c.requiredText("name", maxID), c.text("seen", maxID), c.get("edits", rawjson.Array, true)
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	var edits []documents.Edit
	if err := decoder.Decode(&edits); err != nil {
		c.fail("edits", fmt.Sprintf("cannot be read: %v", err))
	}
	return func(ctx context.Context) (any, error) { return s.cfg.Documents.EditVersion(ctx, name, seen, edits) }
}

// DocumentSyncParams are a program's copy of a document.
type DocumentSyncParams struct {
	Name string `json:"name"`
	documents.Copy
}

func (s *Service) documentsSync(c *call) action {
	p := DocumentSyncParams{Name: c.requiredText("name", maxID)}
	if err := json.Unmarshal(c.Params, &p.Copy); err != nil && *c.err == nil {
		c.fail("vector", "epoch must be a number, vector and update in base64")
	}
	return func(ctx context.Context) (any, error) { return s.cfg.Documents.Sync(ctx, p.Name, p.Copy) }
}

// DocumentCompacted is the result of hub/documents/compact, in items.
type DocumentCompacted struct {
	Before int `json:"before"`
	After  int `json:"after"`
}

func (s *Service) documentsCompact(ctx context.Context, name string) (DocumentCompacted, error) {
	before, after, err := s.cfg.Documents.Compact(ctx, name)
	return DocumentCompacted{before, after}, err
}

func (s *Service) documentsShare(c *call) action {
	name, agent, role := c.requiredText("name", maxID), c.requiredText("agent", maxID), c.text("role", maxID)
	return func(ctx context.Context) (any, error) {
		if err := s.cfg.Shares.Share(ctx, name, agent, documents.Role(role)); err != nil {
			return nil, err
		}
		return s.documentsShares(ctx, name)
	}
}

// documentsShares returns the roles in a document, by agent.
func (s *Service) documentsShares(ctx context.Context, name string) (map[string]documents.Role, error) {
	return s.cfg.Shares.Shares(ctx, name)
}

// CodeOutcomeUnknown is the name of the code of a change that may or may not have been made.
const CodeOutcomeUnknown = "OUTCOME_UNKNOWN"

// documentError translates an error about a document that the caller can act on.
// The hub's own errors stay as they are, for the log.
func documentError(err error) error {
	var de *documents.Error
	var re *replica.Error
	switch {
	case errors.Is(err, context.Canceled) && documents.CodeOf(err) != documents.CodeUncertain:
		return jsonrpc.NewError(CodeAgentUnavailable, "The request was interrupted because the hub stops",
			jsonrpc.Details{Code: "AGENT_UNAVAILABLE", Remedy: "try again when the hub runs again"})
	case errors.As(err, &de):
		code, ok := map[documents.Code]wireCode{
			documents.CodeInvalid:  {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
			documents.CodeNotFound: {jsonrpc.CodeInvalidParams, "DOCUMENT_NOT_FOUND"},
			documents.CodeChanged:  {jsonrpc.CodeInvalidParams, "DOCUMENT_CHANGED"},
			documents.CodeStorage:  {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
			documents.CodeClosed:   {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
			documents.CodeDamaged:  {jsonrpc.CodeInternalError, "DOCUMENT_DAMAGED"},
			// Not busy: a caller must read the document before it retries.
			documents.CodeUncertain: {jsonrpc.CodeInternalError, CodeOutcomeUnknown},
		}[de.Code]
		message := de.Message
		if de.Code == documents.CodeInvalid {
			message = de.Error() // the cause says what is wrong
		}
		return code.error(ok, err, message, jsonrpc.Details{Remedy: de.Remedy})
	case crdt.CodeOf(err) == crdt.CodeInvalid, crdt.CodeOf(err) == crdt.CodeLimit:
		return jsonrpc.NewError(jsonrpc.CodeInvalidParams, err.Error(), jsonrpc.Details{Code: "INVALID_PARAMS"})
	case errors.As(err, &re):
		return jsonrpc.NewError(jsonrpc.CodeServerBusy, re.Message, jsonrpc.Details{Code: "SERVER_BUSY", Remedy: "try again"})
	}
	return err
}
