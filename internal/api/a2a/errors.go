package a2a

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/errordetails"

	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/push"
)

// Kinds of errors of our own part of the bindings.
var (
	errAgentNotFound    = errors.New("agent not found")
	errMethodNotAllowed = errors.New("method not allowed")
	errTooLarge         = errors.New("request too large")
)

// wireCode is the wire format of a kind of error (A2A 1.0, section 5.4).
type wireCode struct {
	err    error
	rpc    int
	http   int
	status string // google.rpc.Code
	reason string // "" means the SDK's reason
}

var wireCodes = []wireCode{
	{a2a.ErrParseError, -32700, http.StatusBadRequest, "INVALID_ARGUMENT", ""},
	{a2a.ErrInvalidRequest, -32600, http.StatusBadRequest, "INVALID_ARGUMENT", ""},
	{a2a.ErrMethodNotFound, -32601, http.StatusNotFound, "UNIMPLEMENTED", ""},
	{a2a.ErrInvalidParams, -32602, http.StatusBadRequest, "INVALID_ARGUMENT", ""},
	{a2a.ErrTaskNotFound, -32001, http.StatusNotFound, "NOT_FOUND", ""},
	{a2a.ErrTaskNotCancelable, -32002, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{a2a.ErrPushNotificationNotSupported, -32003, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{a2a.ErrUnsupportedOperation, -32004, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{a2a.ErrUnsupportedContentType, -32005, http.StatusUnsupportedMediaType, "INVALID_ARGUMENT", ""},
	{a2a.ErrInvalidAgentResponse, -32006, http.StatusBadGateway, "INTERNAL", ""},
	{a2a.ErrExtendedCardNotConfigured, -32007, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{a2a.ErrExtensionSupportRequired, -32008, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{a2a.ErrVersionNotSupported, -32009, http.StatusBadRequest, "FAILED_PRECONDITION", ""},
	{errAgentNotFound, -32602, http.StatusNotFound, "NOT_FOUND", "AGENT_NOT_FOUND"},
	{errMethodNotAllowed, -32600, http.StatusMethodNotAllowed, "UNIMPLEMENTED", "METHOD_NOT_ALLOWED"},
	{errTooLarge, -32600, http.StatusRequestEntityTooLarge, "INVALID_ARGUMENT", "REQUEST_TOO_LARGE"},
	{a2a.ErrServerError, -32000, http.StatusServiceUnavailable, "UNAVAILABLE", ""},
	{a2a.ErrInternalError, -32603, http.StatusInternalServerError, "INTERNAL", ""},
}

// wireCodeOf returns the code of an error; an unknown error is internal.
func wireCodeOf(err error) wireCode {
	for _, c := range wireCodes {
		if errors.Is(err, c.err) {
			return c
		}
	}
	return wireCodes[len(wireCodes)-1]
}

// fromHub translates an error of the hub or of push. The client gets texts for users; other causes are only logged.
func fromHub(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err // the client has disconnected
	}
	var known *a2a.Error
	if errors.As(err, &known) {
		return err
	}
	var he *hub.Error
	var pe *push.Error
	switch {
	case errors.As(err, &he):
		return fromHubError(log, he)
	case errors.As(err, &pe):
		if pe.Err != nil {
			log.Warn("push configuration failed", "code", pe.Code, "error", pe.Err)
		}
		return fault(cmp.Or(pushKinds[pe.Code], a2a.ErrInternalError), pe.Error())
	}
	log.Error("call failed", "error", err)
	return a2a.ErrInternalError
}

var hubKinds = map[hub.Code]error{
	hub.CodeInvalid: a2a.ErrInvalidParams, hub.CodeAgentNotFound: a2a.ErrInvalidParams, hub.CodeContextNotFound: a2a.ErrInvalidParams,
	hub.CodeTaskNotFound:  a2a.ErrTaskNotFound,
	hub.CodeNotCancelable: a2a.ErrTaskNotCancelable,
	hub.CodeUnsupported:   a2a.ErrUnsupportedOperation,
	hub.CodeUnavailable:   a2a.ErrServerError, hub.CodeAuth: a2a.ErrServerError, hub.CodeTimeout: a2a.ErrServerError,
}

var pushKinds = map[push.Code]error{
	push.CodeInvalid: a2a.ErrInvalidParams, push.CodeNotFound: a2a.ErrTaskNotFound, push.CodeLimit: a2a.ErrServerError,
}

func fromHubError(log *slog.Logger, he *hub.Error) error {
	kind := cmp.Or(hubKinds[he.Code], a2a.ErrInternalError)
	if he.Err != nil {
		log.Warn("call failed", "code", he.Code, "message", he.Message, "error", he.Err)
	}
	out := fault(kind, he.Error())
	if he.Subject != "" {
		out = out.WithTypedDetails(badField(he.Subject, he.Message))
	}
	return out.WithErrorInfoMeta(map[string]string{"code": string(he.Code)})
}

// fault returns an error of a kind with details. Its text starts with the kind's, which
// clients and the conformance kits look for.
func fault(kind error, details string) *a2a.Error {
	return a2a.NewError(kind, kind.Error()+": "+details)
}

// invalid returns the error of an invalid parameter.
func invalid(field, message string) error {
	return fault(a2a.ErrInvalidParams, field+": "+message).WithTypedDetails(badField(field, message))
}

const badRequestType = "type.googleapis.com/google.rpc.BadRequest"

func badField(field, message string) *errordetails.Typed {
	return errordetails.NewTyped(badRequestType, map[string]any{
		"fieldViolations": []map[string]string{{"field": field, "description": message}},
	})
}

// errorDetails returns the details for clients: an ErrorInfo with the reason, then the
// other details of an *a2a.Error.
func errorDetails(err error, code wireCode) []*errordetails.Typed {
	info := errordetails.NewErrorInfo(cmp.Or(code.reason, a2a.ErrorReason(code.err)), a2a.ProtocolDomain, nil)
	details := []*errordetails.Typed{info}
	var ae *a2a.Error
	if !errors.As(err, &ae) {
		return details
	}
	for _, d := range ae.TypedDetails {
		if d.TypeURL != errordetails.ErrorInfoType {
			details = append(details, d)
		} else if meta, ok := d.Value["metadata"]; ok {
			info.Value["metadata"] = meta
		}
	}
	return details
}

// expected reports whether an error was made for clients.
func expected(err error) bool {
	var ae *a2a.Error
	return errors.As(err, &ae) || wireCodeOf(err).err != a2a.ErrInternalError
}

// errorText returns the message for a client: that of an *a2a.Error or of the kind,
// never the text of an unknown cause.
func errorText(err error, code wireCode) string {
	var ae *a2a.Error
	if errors.As(err, &ae) {
		return ae.Error()
	}
	return code.err.Error()
}

// writeRESTError writes a google.rpc.Status as JSON (AIP-193), as the SDK's binding does.
func writeRESTError(w http.ResponseWriter, err error) {
	c := wireCodeOf(err)
	body, mErr := json.Marshal(map[string]any{"error": map[string]any{
		"code":    c.http,
		"status":  c.status,
		"message": errorText(err, c),
		"details": errorDetails(err, c),
	}})
	if mErr != nil { // impossible: details have only strings and maps of them
		body = []byte(`{"error":{"code":500,"status":"INTERNAL","message":"internal error"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(c.http)
	writeBody(w, body)
}

// writeBody writes the rest of an answer. A write fails only if the client has disconnected.
func writeBody(w http.ResponseWriter, body []byte) {
	_, _ = w.Write(body)
}
