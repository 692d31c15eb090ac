package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/text"
)

// Tool is one tool. In and Out are structs whose JSON names and jsonschema tags define the schemas of the arguments and
// of the structured content. Fields of In with omitempty are optional.
type Tool[In, Out any] struct {
	Name, Title string
	// Description is for a model that has never seen the tool.
	Description string
	// ReadOnly tools change nothing; Idempotent ones can be repeated without further effect; Destructive ones delete or
	// overwrite something.
	ReadOnly, Idempotent, Destructive bool
	// WrittenBy says who has written what the tool returns, if that is not Parley: such as [ByOthers]. It stands at the beginning of the
	// structured content.
	WrittenBy string
	// Blocks marks a tool that waits for others. The next calls of its connection begin while it runs, and its context
	// ends with Service.Stop.
	Blocks bool
	// Refine adds patterns, bounds and defaults to the schema of the arguments. The schema only informs clients; Handle
	// checks.
	Refine func(properties map[string]*jsonschema.Schema)
	// Handle executes the tool. It returns the text for the model and the same as structured content. The agent receives
	// a *Failure and errors with a method Explain() (category, message, remedy string); it does not see other errors.
	Handle func(ctx context.Context, c *Call, in In) (text string, out Out, err error)
}

// AddTool adds a tool. The tool calls of a connection begin one after the other, in the order of their requests, so that an
// agent's messages keep their order (see Tool.Blocks).
func AddTool[In, Out any](all *Tools, t Tool[In, Out]) {
	handle, destructive := t.Handle, t.Destructive
	all.add(tool{
		definition: mcp.Tool{
			Name: t.Name, Title: t.Title, Description: t.Description,
			Annotations: &mcp.ToolAnnotations{
				Title: t.Title, ReadOnlyHint: t.ReadOnly, IdempotentHint: t.ReadOnly || t.Idempotent, DestructiveHint: &destructive, OpenWorldHint: new(false),
			},
		},
		refine: t.Refine, out: reflect.TypeFor[Out](), writtenBy: t.WrittenBy, blocks: t.Blocks, in: reflect.TypeFor[In](),
		handle: func(ctx context.Context, c *Call, in any) (string, any, error) { return handle(ctx, c, *in.(*In)) },
	})
}

// tool is a Tool without type parameters. The compiler copies a generic function for each tool's types, so the code that all
// tools share takes this: a third of a megabyte.
type tool struct {
	definition mcp.Tool // without schemas
	refine     func(properties map[string]*jsonschema.Schema)
	in, out    reflect.Type
	writtenBy  string
	blocks     bool
	handle     func(ctx context.Context, c *Call, in any) (text string, out any, err error) // in is a pointer
}

// call calls a tool of a group.
func (s *Server) call(ctx context.Context, t *registered, req *mcp.CallToolRequest) *mcp.CallToolResult {
	start, name := time.Now(), t.definition.Name
	log := s.Logger("mcp-tool").With("tool", name)
	call := &Call{server: s, request: req, begun: start, pending: s.running()}
	if t.blocks {
		s.release()
		var cancel context.CancelFunc
		ctx, cancel = s.service.whileRunning(ctx)
		defer cancel()
	}
	text, out, err := s.run(ctx, t, call)
	call.answer(err == nil && ctx.Err() == nil)
	if err != nil && ctx.Err() != nil {
		// The call was cancelled, or the server stops.
		return (&Failure{Category: InterruptedError, Message: "The call was interrupted.", Remedy: "Call the tool again."}).result()
	}
	if err != nil {
		failure := failureOf(err)
		logFailure(ctx, log, failure)
		logToClient(ctx, req, "warning", map[string]string{"message": name + " failed", "error": failure.Message})
		return failure.result()
	}
	took := time.Since(start).String()
	log.DebugContext(ctx, "tool called", "took", took)
	logToClient(ctx, req, "debug", map[string]string{"message": name + " called", "took": took})
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: framed{writtenBy: t.writtenBy, content: out}}
}

func (s *Server) run(ctx context.Context, t *registered, call *Call) (text string, out any, err error) {
	in := reflect.New(t.in).Interface()
	token, err := decodeArguments(call.request.Params.Arguments, t.input(s.client == nil), in)
	if err != nil {
		return "", nil, err
	}
	if call.Client, err = s.clientOf(token); err != nil {
		return "", nil, err
	}
	return t.handle(ctx, call, in)
}

// logFailure logs a failure: an internal error as such, anything else as a warning.
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

// logToClient sends a log message to the client, if it has requested messages of that level.
//
//lint:ignore SA1019 clients of the revisions up to 2025-11-25 still have logging
func logToClient(ctx context.Context, req *mcp.CallToolRequest, level mcp.LoggingLevel, data any) {
	// The SDK logs errors, which mean that the client has disconnected.
	//lint:ignore SA1019 as above
	_ = req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "mcp-tool", Data: data})
}

// whileRunning derives a context that also ends with [Service.Stop].
func (s *Service) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.stopped, cancel)
	return ctx, func() { stop(); cancel() }
}

// Call is one call of a tool.
type Call struct {
	// Client is the calling agent's.
	Client  *Client
	server  *Server
	request *mcp.CallToolRequest

	begun    time.Time
	pending  *pending // nil if it is not known when the answer is written
	answered []func(written bool)
}

// Sent returns a time at which the client had sent the call: it knew the answers that were written before.
func (c *Call) Sent() time.Time {
	if c.pending == nil {
		return c.begun
	}
	return c.pending.read
}

// OnAnswer has f called when the call's answer was written, or will not be because the call fails, was cancelled or the
// connection has failed. Over HTTP an answer counts as written when the call ends. f must not block.
func (c *Call) OnAnswer(f func(written bool)) { c.answered = append(c.answered, f) }

// answer reports the end of the call.
func (c *Call) answer(succeeded bool) {
	if c.pending != nil && succeeded {
		c.pending.answered = c.answered
		return
	}
	for _, f := range c.answered {
		f(succeeded)
	}
}

// Handle returns the agent's handle, or a Failure that asks the agent to set one.
func (c *Call) Handle() (string, error) {
	if h := c.Client.Handle(); h != "" {
		return h, nil
	}
	remedy := "Call set_handle first, for example with the handle project-manager."
	if c.server.client == nil {
		remedy += " Then pass the session that it returns with this call."
	}
	return "", &Failure{Category: ValidationError, Message: "No handle is set, so others could not know who speaks.", Remedy: remedy}
}

// Token keeps the state of a client without a connection after the call, and returns the token that the agent must pass
// with further calls; "" for a connection.
func (c *Call) Token() string {
	if c.server.client != nil {
		return ""
	}
	return c.server.service.tokens.issue(c.Client)
}

// withToken appends the request to pass the token, if there is one, to a result.
func withToken(text, token string) string {
	if token == "" {
		return text
	}
	return text + "\nThis connection keeps no session. Pass the argument session with the value " + token + " with every further call; do not send it to others."
}

// Meta returns a string of the request's _meta, such as "traceparent", or "". The client may have chosen any value.
func (c *Call) Meta(key string) string {
	text, _ := c.request.Params.Meta[key].(string)
	return text
}

// Server returns the server that was called.
func (c *Call) Server() *Server { return c.server }

// progressEvery is the interval of progress notifications. Tests change it.
var progressEvery = 10 * time.Second

// ReportProgress sends progress notifications to the client, if it has requested them, until stop is called. Stop waits
// for the last notification, which blocks while the client does not read.
func (c *Call) ReportProgress(ctx context.Context, total time.Duration, message string) (stop func()) {
	token := c.request.Params.GetProgressToken()
	if token == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for start := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			err := c.request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: time.Since(start).Seconds(), Total: total.Seconds(), Message: message,
			})
			if err != nil && ctx.Err() == nil {
				c.server.service.log.Debug("progress was not delivered", "error", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// clientOf returns the calling client. Without a connection and a token it is dropped after the call.
func (s *Server) clientOf(token string) (*Client, error) {
	switch {
	case s.client != nil:
		return s.client, nil
	case token == "":
		return &Client{}, nil
	}
	if client, ok := s.service.tokens.find(token); ok {
		return client, nil
	}
	return nil, &Failure{Category: ValidationError, Message: "The session is not known. The hub was restarted, or the session was not used for long.",
		Remedy: "Call set_handle without a session, then pass the session that it returns."}
}

// sessionArgument is the argument of every tool with which clients without connections pass their token.
const sessionArgument = "session"

// inputSchema returns the schema of a tool's arguments, for clients with or without connections. It must not be changed.
func inputSchema(t tool, stateless bool) *jsonschema.Schema {
	if t.refine == nil && !stateless {
		return sharedSchema(t.in)
	}
	input := schemaOf(t.in)
	if t.refine != nil {
		t.refine(input.Properties)
	}
	if stateless {
		if input.Properties == nil {
			input.Properties = map[string]*jsonschema.Schema{}
		}
		input.Properties[sessionArgument] = &jsonschema.Schema{Type: "string",
			Description: "The session that set_handle returned. It stands for you: do not share it."}
		input.PropertyOrder = append(input.PropertyOrder, sessionArgument)
	}
	return input
}

// sharedSchemas has the schemas that are the same in all projects, of each type of arguments and results.
var sharedSchemas sync.Map // of reflect.Type or resultType to *jsonschema.Schema

// sharedSchema returns the schema of a type. It must not be changed.
func sharedSchema(t reflect.Type) *jsonschema.Schema {
	if known, ok := sharedSchemas.Load(t); ok {
		return known.(*jsonschema.Schema)
	}
	known, _ := sharedSchemas.LoadOrStore(t, schemaOf(t))
	return known.(*jsonschema.Schema)
}

func schemaOf(t reflect.Type) *jsonschema.Schema {
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{})
	if err != nil {
		panic(fmt.Sprintf("the schema of %v: %v", t, err)) // a type of this program
	}
	return schema
}

// decodeArguments decodes the arguments of a call strictly into in, and returns the client's token separately. Errors
// are fit for agents.
func decodeArguments(raw json.RawMessage, schema *jsonschema.Schema, in any) (token string, err error) {
	arguments := map[string]json.RawMessage{}
	if !utf8.Valid(raw) { // decoding would silently replace invalid bytes
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
		case isZero(arguments[name]) && property.Minimum != nil && *property.Minimum > 0: // else it would count as missing
			return "", wrongArgument(fmt.Sprintf("The argument %q must be at least %v.", name, *property.Minimum), schema)
		}
		if member, in := unknownMember(arguments[name], property); member != "" {
			return "", unknownArgument(member, in)
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
	data, err := json.Marshal(arguments)
	if err == nil {
		err = json.Unmarshal(data, in)
	}
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return "", wrongArgument(fmt.Sprintf("The argument %q has a value of the wrong kind: %s.", mismatch.Field, mismatch.Value), schema)
	}
	if err != nil {
		return "", wrongArgument("The arguments cannot be read: "+err.Error()+".", schema)
	}
	return token, nil
}

// unknownMember returns a member of an argument that its schema does not have, and the schema of the object that it is in; "" if there is
// none. Decoding would silently leave it out.
func unknownMember(raw json.RawMessage, schema *jsonschema.Schema) (name string, in *jsonschema.Schema) {
	var members map[string]json.RawMessage
	var elements []json.RawMessage
	switch {
	case schema.Items != nil && (schema.Items.Items != nil || len(schema.Items.Properties) > 0) && json.Unmarshal(raw, &elements) == nil:
		for _, e := range elements {
			if name, in := unknownMember(e, schema.Items); name != "" {
				return name, in
			}
		}
	case len(schema.Properties) > 0 && json.Unmarshal(raw, &members) == nil:
		for _, name := range slices.Sorted(maps.Keys(members)) {
			property, known := schema.Properties[name]
			if !known {
				return name, schema
			}
			if name, in := unknownMember(members[name], property); name != "" {
				return name, in
			}
		}
	}
	return "", nil
}

func unknownArgument(name string, schema *jsonschema.Schema) error {
	name = text.Clip(name, 80)
	message := fmt.Sprintf("There is no argument %q.", name)
	if near := text.Nearest(name, schema.PropertyOrder); near != "" {
		message += fmt.Sprintf(" Did you mean %q?", near)
	}
	return wrongArgument(message, schema)
}

func wrongArgument(message string, schema *jsonschema.Schema) error {
	remedy := "The tool takes no arguments."
	if names := slices.Clone(schema.PropertyOrder); len(names) > 0 {
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

func isZero(number json.RawMessage) bool {
	n, err := strconv.ParseInt(string(number), 10, 64)
	return err == nil && n == 0
}

// types are the JSON types: their names in messages, and the characters that their values begin with.
var types = map[string]struct{ name, first string }{
	"string":  {"a string", `"`},
	"array":   {"a list", "["},
	"object":  {"an object", "{"},
	"boolean": {"true or false", "tf"},
	"integer": {"a whole number", "-0123456789"},
	"number":  {"a number", "-0123456789"},
	"":        {name: "any value"},
}

// isOfType compares a value's first character with the type of a property. Decoding checks the elements of a list.
func isOfType(value json.RawMessage, property *jsonschema.Schema) bool {
	k := kind(property)
	if k == "" {
		return true
	}
	fraction := k == "integer" && value[0] != '-' && bytes.ContainsAny(value, ".eE")
	return strings.IndexByte(types[k].first, value[0]) >= 0 && !fraction
}

// kind returns the type of a property other than null, "" for any.
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
	k := kind(property)
	if k == "array" && property.Items != nil && property.Items.Type == "string" {
		return "a list of strings"
	}
	return types[k].name
}
