package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/text"
)

// Tool is one tool. In and Out are structs: their JSON names and jsonschema tags
// become the schemas of the arguments and of the structured content. Fields of In
// with omitempty are optional.
type Tool[In, Out any] struct {
	Name, Title string
	// Description is for a model that has never seen the tool.
	Description string
	// ReadOnly tools change nothing; Idempotent ones may be called again without
	// further effect; Destructive ones take something away.
	ReadOnly, Idempotent, Destructive bool
	// Blocks marks a tool that waits for others. The next calls of its connection
	// need not wait until it returns, and its context ends with Service.Stop.
	Blocks bool
	// Refine adds what tags cannot say to the schema of the arguments: patterns,
	// bounds, defaults. It tells clients; Handle checks.
	Refine func(properties map[string]*jsonschema.Schema)
	// Handle does the work. It returns the text for the model and the same as
	// structured content. Errors with a method Explain() (category, message,
	// remedy string), and *Failure, are told to the agent; others are hidden.
	Handle func(ctx context.Context, c *Call, in In) (text string, out Out, err error)
}

// AddTool adds a tool to a server.
//
// The tool calls of a connection begin one after the other, in the order in which
// they came, so that what an agent sends keeps its order (see Blocks).
func AddTool[In, Out any](s *Server, t Tool[In, Out]) {
	definition := define(s, t)
	properties := definition.InputSchema.(*jsonschema.Schema)
	log := s.Logger("mcp-tool").With("tool", t.Name)
	s.mcp.AddTool(definition, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		start := time.Now()
		if t.Blocks {
			s.release()
			var cancel context.CancelFunc
			ctx, cancel = s.service.whileRunning(ctx)
			defer cancel()
		}
		text, out, err := run(ctx, s, t, properties, req)
		if err != nil && ctx.Err() != nil {
			// Nobody may read it: the call was cancelled, or the server stops.
			return (&Failure{Category: InterruptedError, Message: "The call was interrupted.", Remedy: "Call the tool again."}).result(), nil
		}
		if err != nil {
			failure := failureOf(err)
			logFailure(ctx, log, failure)
			tell(ctx, req, "warning", map[string]string{"message": t.Name + " failed", "error": failure.Message})
			return failure.result(), nil
		}
		took := time.Since(start).String()
		log.DebugContext(ctx, "tool called", "took", took)
		tell(ctx, req, "debug", map[string]string{"message": t.Name + " called", "took": took})
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: out}, nil
	})
}

func run[In, Out any](ctx context.Context, s *Server, t Tool[In, Out], schema *jsonschema.Schema, req *mcp.CallToolRequest) (text string, out Out, err error) {
	var in In
	token, err := decodeArguments(req.Params.Arguments, schema, &in)
	if err != nil {
		return "", out, err
	}
	call := &Call{server: s, request: req}
	if call.Session, err = s.sessionOf(token); err != nil {
		return "", out, err
	}
	return t.Handle(ctx, call, in)
}

// logFailure logs a failure once (REQ-ERROR-005). What the agent did wrong, or an
// outage that is logged elsewhere, is a warning.
func logFailure(ctx context.Context, log *slog.Logger, f *Failure) {
	level := slog.LevelWarn
	if f.Category == InternalError {
		level = slog.LevelError
	}
	attrs := []any{"category", f.Category, "error", f.Message}
	if f.Err != nil {
		attrs = append(attrs, "cause", f.Err)
	}
	log.Log(ctx, level, "tool failed", attrs...)
}

// tell logs to the client, if it has asked for messages of that level.
//
//lint:ignore SA1019 clients of the revisions up to 2025-11-25 still have logging
func tell(ctx context.Context, req *mcp.CallToolRequest, level mcp.LoggingLevel, data any) {
	// A client that has gone gets no answer either, and the SDK logs it.
	//lint:ignore SA1019 as above
	_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "mcp-tool", Data: data})
}

// whileRunning derives a context that also ends with Stop.
func (s *Service) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.stopped, cancel)
	return ctx, func() { stop(); cancel() }
}

// Call is one call of a tool.
type Call struct {
	// Session is who calls.
	Session *Session
	server  *Server
	request *mcp.CallToolRequest
}

// Handle returns the agent's handle, or the error that tells it to set one
// (REQ-TOOL-013, REQ-TOOL-014).
func (c *Call) Handle() (string, error) {
	if h := c.Session.Handle(); h != "" {
		return h, nil
	}
	remedy := "Call set_handle first, for example with the handle project-manager."
	if c.server.session == nil {
		remedy += " Then pass the session that it returns with this call."
	}
	return "", &Failure{Category: ValidationError, Message: "No handle is set, so others could not know who speaks.", Remedy: remedy}
}

// Keep makes the session outlast the call where the connection does not, and
// returns the token that the agent must pass; "" where the connection is the
// session.
func (c *Call) Keep() string {
	if c.server.session != nil {
		return ""
	}
	return c.server.service.tokens.keep(c.Session)
}

// Meta returns a text of the request's _meta, "" if there is none: the trace context
// "traceparent", say. It is the client's word.
func (c *Call) Meta(key string) string {
	text, _ := c.request.Params.Meta[key].(string)
	return text
}

// Server is the server that was called.
func (c *Call) Server() *Server { return c.server }

// Progress tells the client that the call is alive, if it has asked for that. It
// blocks while the client does not read.
func (c *Call) Progress(ctx context.Context, done, total float64, message string) {
	token := c.request.Params.GetProgressToken()
	if token == nil {
		return
	}
	err := c.request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: token, Progress: done, Total: total, Message: message,
	})
	if err != nil && ctx.Err() == nil {
		c.server.service.log.Debug("progress was not delivered", "error", err)
	}
}

// sessionOf finds who calls. Without a token a client without sessions gets one
// that is forgotten after the call.
func (s *Server) sessionOf(token string) (*Session, error) {
	switch {
	case s.session != nil:
		return s.session, nil
	case token == "":
		return &Session{}, nil
	}
	if session, ok := s.service.tokens.find(token); ok {
		return session, nil
	}
	return nil, &Failure{Category: ValidationError, Message: "The session is not known. The hub was restarted, or the session was not used for long.",
		Remedy: "Call set_handle without a session, then pass the session that it returns."}
}

// sessionArgument is the argument of every tool by which clients without
// sessions say who they are.
const sessionArgument = "session"

type toolKey struct {
	name        string
	sessionless bool
}

// define makes a tool's definition, once for each kind of server.
func define[In, Out any](s *Server, t Tool[In, Out]) *mcp.Tool {
	key := toolKey{t.Name, s.session == nil}
	if known, ok := s.service.tools.Load(key); ok {
		return known.(*mcp.Tool)
	}
	input, output := schemaOf[In](), schemaOf[Out]()
	if t.Refine != nil {
		t.Refine(input.Properties)
	}
	if s.session == nil {
		addSession(input)
	}
	no := false
	definition := &mcp.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: input, OutputSchema: output,
		Annotations: &mcp.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, IdempotentHint: t.ReadOnly || t.Idempotent, DestructiveHint: &t.Destructive, OpenWorldHint: &no,
		},
	}
	known, _ := s.service.tools.LoadOrStore(key, definition)
	return known.(*mcp.Tool)
}

func schemaOf[T any]() *jsonschema.Schema {
	schema, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("the schema of %T: %v", *new(T), err)) // a type of the program's own
	}
	return schema
}

func addSession(input *jsonschema.Schema) {
	if input.Properties == nil {
		input.Properties = map[string]*jsonschema.Schema{}
	}
	input.Properties[sessionArgument] = &jsonschema.Schema{Type: "string",
		Description: "The session that set_handle returned. It stands for you: do not share it."}
	input.PropertyOrder = append(input.PropertyOrder, sessionArgument)
}

// decodeArguments decodes the arguments of a call strictly, and says in plain
// words what is wrong (REQ-SEC-005). It returns the session's token apart.
func decodeArguments(raw json.RawMessage, schema *jsonschema.Schema, in any) (token string, err error) {
	arguments := map[string]json.RawMessage{}
	if !utf8.Valid(raw) { // decoding would replace what is wrong, and nobody would know
		return "", wrongArgument("The arguments are not valid UTF-8.", schema)
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &arguments); err != nil {
			return "", wrongArgument("The arguments must be one JSON object.", schema)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(arguments)) {
		property, known := schema.Properties[name]
		switch {
		case !known:
			return "", unknownArgument(name, schema)
		case bytes.Equal(arguments[name], []byte("null")):
			delete(arguments, name)
		case !isOfType(arguments[name], property):
			return "", wrongArgument(fmt.Sprintf("The argument %q must be %s.", name, typeName(property)), schema)
		case isZero(arguments[name]) && property.Minimum != nil && *property.Minimum > 0: // else it would pass for none
			return "", wrongArgument(fmt.Sprintf("The argument %q must be at least %v.", name, *property.Minimum), schema)
		}
	}
	for _, name := range schema.Required {
		if _, ok := arguments[name]; !ok {
			return "", wrongArgument(fmt.Sprintf("The argument %q is missing.", name), schema)
		}
	}
	if given, ok := arguments[sessionArgument]; ok && json.Unmarshal(given, &token) == nil {
		delete(arguments, sessionArgument)
	}
	return token, decodeInto(arguments, in, schema)
}

func decodeInto(arguments map[string]json.RawMessage, in any, schema *jsonschema.Schema) error {
	data, err := json.Marshal(arguments)
	if err == nil {
		err = json.Unmarshal(data, in)
	}
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrongArgument(fmt.Sprintf("The argument %q has a value of the wrong kind: %s.", mismatch.Field, mismatch.Value), schema)
	}
	if err != nil {
		return wrongArgument("The arguments cannot be read: "+err.Error()+".", schema)
	}
	return nil
}

func unknownArgument(name string, schema *jsonschema.Schema) error {
	if len(name) > 80 {
		name = strings.ToValidUTF8(name[:80], "") + "…"
	}
	message := fmt.Sprintf("There is no argument %q.", name)
	if near := text.Nearest(name, argumentNames(schema)); near != "" {
		message += fmt.Sprintf(" Did you mean %q?", near)
	}
	return wrongArgument(message, schema)
}

func wrongArgument(message string, schema *jsonschema.Schema) error {
	remedy := "The tool takes no arguments."
	if names := argumentNames(schema); len(names) > 0 {
		for i, name := range names {
			needed := "optional"
			if slices.Contains(schema.Required, name) {
				needed = "required"
			}
			names[i] = fmt.Sprintf("%s (%s, %s)", name, typeName(schema.Properties[name]), needed)
		}
		remedy = "The arguments are: " + strings.Join(names, ", ") + "."
	}
	return &Failure{Category: ValidationError, Message: message, Remedy: remedy}
}

func argumentNames(schema *jsonschema.Schema) []string {
	return slices.Clone(schema.PropertyOrder)
}

func isZero(number json.RawMessage) bool {
	n, err := strconv.ParseInt(string(number), 10, 64)
	return err == nil && n == 0
}

// isOfType compares a value's first character with the type that the schema
// asks for; what is inside a list shows when it is decoded.
func isOfType(value json.RawMessage, property *jsonschema.Schema) bool {
	first := value[0]
	switch kind(property) {
	case "string":
		return first == '"'
	case "array":
		return first == '['
	case "object":
		return first == '{'
	case "boolean":
		return first == 't' || first == 'f'
	case "integer":
		return first == '-' || first >= '0' && first <= '9' && !bytes.ContainsAny(value, ".eE")
	case "number":
		return first == '-' || first >= '0' && first <= '9'
	}
	return true
}

// kind is the one type of a property. Slices and pointers may also be null.
func kind(property *jsonschema.Schema) string {
	if property.Type != "" {
		return property.Type
	}
	for _, t := range property.Types {
		if t != "null" {
			return t
		}
	}
	return ""
}

func typeName(property *jsonschema.Schema) string {
	switch k := kind(property); k {
	case "integer":
		return "a whole number"
	case "array":
		if property.Items != nil && property.Items.Type == "string" {
			return "a list of strings"
		}
		return "a list"
	case "object":
		return "an object"
	case "boolean":
		return "true or false"
	case "":
		return "any value"
	default:
		return "a " + k
	}
}
