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

// Documents is what the dialect needs of the hub's documents; see package documents.
type Documents interface {
	Names(ctx context.Context) ([]string, error)
	Get(ctx context.Context, name string) (*documents.Document, error)
	Compact(ctx context.Context, name string) (before, after int, err error)
	EditDocument(ctx context.Context, name string, edits []documents.Edit) (*documents.Content, error)
	Document(ctx context.Context, name string) (*documents.Content, error)
	AwaitDocument(ctx context.Context, name, seen string) (*documents.Content, error)
}

// Shares is what the dialect needs to say who may what with documents.
type Shares interface {
	Share(ctx context.Context, name, agentID string, role documents.Role) error
	Shares(ctx context.Context, name string) (map[string]documents.Role, error)
}

// DocumentShareParams give an agent a role in a document, or take it away with "".
type DocumentShareParams struct {
	Name  string         `json:"name"`
	Agent string         `json:"agent"`
	Role  documents.Role `json:"role"`
}

// DocumentParams name a document, and for MethodDocumentsWait what the caller has
// seen of it.
type DocumentParams struct {
	Name string `json:"name"`
	Seen string `json:"seen,omitempty"` // a version
}

// DocumentEditParams are the edits of one change.
type DocumentEditParams struct {
	Name  string           `json:"name"`
	Edits []documents.Edit `json:"edits"`
}

// documentsPatience is how long a wait for a change lasts; then the caller asks again.
const documentsPatience = 25 * time.Second

func (s *Service) documentsList(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	if params := readParams(req.Params); params.err != nil {
		return nil, params.err
	}
	names, err := s.cfg.Documents.Names(ctx)
	if err != nil {
		return nil, documentError(err)
	}
	if names == nil {
		names = []string{}
	}
	return names, nil
}

func (s *Service) documentsGet(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name := params.requiredText("name", maxID)
	if params.err != nil {
		return nil, params.err
	}
	d, err := s.cfg.Documents.Get(ctx, name)
	if err != nil {
		return nil, documentError(err)
	}
	c, err := d.Content(ctx)
	return c, documentError(err)
}

// documentsWait answers when the document is another than the caller has seen, or after a
// while with what the caller has.
func (s *Service) documentsWait(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name, seen := params.requiredText("name", maxID), params.text("seen", maxID)
	if params.err != nil {
		return nil, params.err
	}
	waiting, cancel := context.WithTimeout(ctx, documentsPatience)
	defer cancel()
	c, err := s.cfg.Documents.AwaitDocument(waiting, name, seen)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		c, err = s.cfg.Documents.Document(ctx, name)
	}
	return c, documentError(err)
}

func (s *Service) documentsEdit(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name, raw := params.requiredText("name", maxID), params.get("edits", rawjson.Array, true)
	if params.err != nil {
		return nil, params.err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	decoder.UseNumber()
	var edits []documents.Edit
	if err := decoder.Decode(&edits); err != nil {
		params.fail("edits", fmt.Sprintf("cannot be read: %v", err))
		return nil, params.err
	}
	c, err := s.cfg.Documents.EditDocument(ctx, name, edits)
	return c, documentError(err)
}

// DocumentCompacted tells how many items a document had and has.
type DocumentCompacted struct {
	Before int `json:"before"`
	After  int `json:"after"`
}

func (s *Service) documentsCompact(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name := params.requiredText("name", maxID)
	if params.err != nil {
		return nil, params.err
	}
	before, after, err := s.cfg.Documents.Compact(ctx, name)
	if err != nil {
		return nil, documentError(err)
	}
	return DocumentCompacted{before, after}, nil
}

func (s *Service) documentsShare(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name, agent, role := params.requiredText("name", maxID), params.requiredText("agent", maxID), params.text("role", maxID)
	if params.err != nil {
		return nil, params.err
	}
	if err := s.cfg.Shares.Share(ctx, name, agent, documents.Role(role)); err != nil {
		return nil, documentError(err)
	}
	return s.shares(ctx, name)
}

func (s *Service) documentsShares(ctx context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
	params := readParams(req.Params)
	name := params.requiredText("name", maxID)
	if params.err != nil {
		return nil, params.err
	}
	return s.shares(ctx, name)
}

// shares returns the roles in a document, by agent.
func (s *Service) shares(ctx context.Context, name string) (any, error) {
	roles, err := s.cfg.Shares.Shares(ctx, name)
	return roles, documentError(err)
}

// CodeOutcomeUnknown is the code by name of a change that may have been made or not.
const CodeOutcomeUnknown = "OUTCOME_UNKNOWN"

// documentError translates an error about a document. What is the hub's own fault stays
// as it is, for the log.
func documentError(err error) error {
	var de *documents.Error
	var re *replica.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &de):
		code, ok := map[documents.Code]wireCode{
			documents.CodeInvalid:  {jsonrpc.CodeInvalidParams, "INVALID_PARAMS"},
			documents.CodeNotFound: {jsonrpc.CodeInvalidParams, "DOCUMENT_NOT_FOUND"},
			documents.CodeStorage:  {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
			documents.CodeClosed:   {jsonrpc.CodeServerBusy, "SERVER_BUSY"},
			// Not busy: whoever tries again must look first.
			documents.CodeUncertain: {jsonrpc.CodeInternalError, CodeOutcomeUnknown},
		}[de.Code]
		if !ok {
			return err
		}
		message := de.Message
		if de.Code == documents.CodeInvalid {
			message = de.Error() // the cause says what is wrong
		}
		return jsonrpc.NewError(code.number, message, jsonrpc.Details{Code: code.name, Remedy: de.Remedy})
	case crdt.CodeOf(err) == crdt.CodeInvalid, crdt.CodeOf(err) == crdt.CodeLimit:
		return jsonrpc.NewError(jsonrpc.CodeInvalidParams, err.Error(), jsonrpc.Details{Code: "INVALID_PARAMS"})
	case errors.As(err, &re):
		return jsonrpc.NewError(jsonrpc.CodeServerBusy, re.Message, jsonrpc.Details{Code: "SERVER_BUSY", Remedy: "try again"})
	}
	return err
}
