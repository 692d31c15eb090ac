package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/hub/events"
)

// apiVersion is the version of the descriptions: that of the promise in docs/versions.md, not that of a release, since the files are
// in the tree.
const apiVersion = "1"

var apiLicence = shape{"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"}

// openAPI describes the hub's HTTP interface.
func openAPI() ([]byte, error) {
	s := newShapes()
	a := api{s}
	paths := shape{
		"/":       shape{"post": a.rpc(false)},
		"/stream": shape{"post": a.rpc(true)},
	}
	for _, d := range a.documents() {
		paths[d.path] = shape{"get": a.get(d)}
	}
	description := shape{
		"openapi": "3.1.1",
		"info": shape{
			"title": "Parley hub, HTTP", "version": apiVersion, "license": apiLicence,
			"description": "The hub's own JSON-RPC dialect over HTTP, and its documents. Written by `go run ./tools/docs` from the Go types. " +
				"A2A (/a2a and /agents/{id}/a2a) and MCP (/mcp) are described by their own specifications; the Unix socket by asyncapi.json. Members and " +
				"methods may be added within a major version.",
		},
		"servers":      []shape{{"url": "http://127.0.0.1:8080"}},
		"externalDocs": shape{"description": "HTTP and socket API", "url": "http-api.html"},
		"security":     []shape{{}, {"bearer": []string{}}},
		"paths":        paths,
	}
	s.components["Request"] = a.anyOf("request", false)
	s.components["Response"] = a.anyOf("response", false)
	description["components"] = shape{
		"schemas":         s.components,
		"securitySchemes": shape{"bearer": shape{"type": "http", "scheme": "bearer", "description": "If http.token is configured."}},
	}
	return a.write(description, checkMethods())
}

// api makes the parts that the descriptions have in common.
type api struct{ *shapes }

// write returns a description as JSON.
func (a api) write(description shape, err error) ([]byte, error) {
	if err == nil {
		err = a.err
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	err = encoder.Encode(description)
	return b.Bytes(), err
}

func ref(component string) shape { return shape{"$ref": "#/components/schemas/" + component} }

// component returns the name of a method's component.
func component(kind, method string) string { return kind + "." + strings.ReplaceAll(method, "/", ".") }

// id is that of a request.
var id = shape{"type": []string{"string", "integer", "null"}}

// messages adds the components of a method: its request and its response.
func (a api) messages(m method) {
	request := shape{"jsonrpc": shape{"const": "2.0"}, "id": id, "method": shape{"const": m.name}}
	required := []string{"jsonrpc", "method"}
	if m.params != nil {
		request["params"] = a.of(m.params)
		if a.needsParams(m) {
			required = append(required, "params")
		}
	}
	a.components[component("request", m.name)] = shape{"type": "object", "title": m.name, "description": m.about, "properties": request, "required": required}
	a.components[component("response", m.name)] = shape{
		"type": "object", "title": "Result of " + m.name, "required": []string{"jsonrpc", "id", "result"},
		"properties": shape{"jsonrpc": shape{"const": "2.0"}, "id": id, "result": a.of(m.result)},
	}
}

// needsParams reports whether a method has a parameter that must be there.
func (a api) needsParams(m method) bool {
	of, _ := a.object(m.params)["required"].([]string)
	return len(of) > 0
}

// anyOf adds the components of the methods, and returns the shape of all of one kind.
func (a api) anyOf(kind string, socket bool) shape {
	all := []shape{}
	for _, m := range methods {
		if m.socket && !socket {
			continue
		}
		a.messages(m)
		all = append(all, ref(component(kind, m.name)))
	}
	if kind == "response" {
		a.components["Error"] = a.rpcError()
		all = append(all, ref("Error"))
	}
	return shape{"anyOf": all}
}

// rpcError is the shape of a response with an error.
func (a api) rpcError() shape {
	return shape{
		"type": "object", "required": []string{"jsonrpc", "id", "error"},
		"properties": shape{"jsonrpc": shape{"const": "2.0"}, "id": id, "error": shape{
			"type": "object", "required": []string{"code", "message"},
			"properties": shape{"code": shape{"type": "integer"}, "message": shape{"type": "string"}, "data": a.of(reflect.TypeFor[jsonrpc.Details]())},
		}},
	}
}

func body(kind string, of shape) shape { return shape{kind: shape{"schema": of}} }

// batch returns the shape of one of something, or of a batch.
func batch(of shape) shape {
	return shape{"oneOf": []shape{of, {"type": "array", "minItems": 1, "maxItems": 100, "items": of}}}
}

// rpc describes the paths of JSON-RPC.
func (a api) rpc(streams bool) shape {
	content := body("application/json", batch(ref("Response")))
	content["text/event-stream"] = shape{"schema": shape{"type": "string", "description": "Each event's data is a response whose result is an event; see asyncapi.json."}}
	summary, name := "JSON-RPC. A method that streams is answered with Server-Sent Events.", "rpc"
	if streams {
		summary, name = "JSON-RPC. message/send is answered with Server-Sent Events, too.", "stream"
	}
	return shape{
		"operationId": name, "summary": summary,
		"requestBody": shape{"required": true, "content": body("application/json", batch(ref("Request")))},
		"responses": a.answers(shape{
			"200": shape{"description": "The responses.", "content": content},
			"204": shape{"description": "Only notifications were sent."},
		}),
	}
}

// answers adds the refusals that all paths have.
func (a api) answers(responses shape) shape {
	for code, about := range map[string]string{"401": "The token is missing or wrong.", "403": "The Host or the Origin is not allowed.", "413": "The body is larger than 10 MiB."} {
		responses[code] = shape{"description": about}
	}
	return responses
}

// document is a path that is read.
type document struct {
	path, name, about string
	kind              string // the media type
	of                shape
	parameters        []shape
	open              bool // without a token
	missing           bool // may be answered with 404
}

// inPath and inQuery return parameters.
func inPath(name, about string) shape {
	return shape{"name": name, "in": "path", "required": true, "description": about, "schema": shape{"type": "string"}}
}

func inQuery(name, about string, of shape) shape {
	return shape{"name": name, "in": "query", "description": about, "schema": of}
}

var (
	anyText  = shape{"type": "string"}
	anyTexts = shape{"type": "array", "items": anyText}
)

// documents are the paths that are read.
func (a api) documents() []document {
	const jsonType, agentID = "application/json", "The agent's id."
	card := a.of(reflect.TypeFor[dialect.AgentCard]())
	a2aCard := shape{"type": "object", "description": "An agent card of A2A 1.0 that clients of 0.3 can read, too."}
	return []document{
		{path: "/health", name: "health", about: "Whether the hub's store answers; 503 if not. Without the token only the status.", kind: jsonType, of: a.of(reflect.TypeFor[dialect.HealthReport]()), open: true},
		{path: "/.well-known/agent.json", name: "hubCard", about: "The hub's card.", kind: jsonType, of: card, open: true},
		{path: "/.well-known/agents", name: "agentCards", about: "The cards of all agents.", kind: jsonType, of: shape{"type": "array", "items": card}},
		{path: "/.well-known/agents/{id}.json", name: "agentCard", about: "The card of an agent.", kind: jsonType, of: card, parameters: []shape{inPath("id", agentID)}, open: true, missing: true},
		{path: "/.well-known/agent-card.json", name: "hubA2ACard", about: "The hub's A2A card.", kind: jsonType, of: a2aCard, open: true},
		{path: "/agents/{id}/.well-known/agent-card.json", name: "agentA2ACard", about: "The A2A card of an agent.", kind: jsonType, of: a2aCard, parameters: []shape{inPath("id", agentID)}, open: true, missing: true},
		{path: "/tasks/{id}/trace", name: "taskTrace", about: "The result of hub/tasks/trace.", kind: jsonType, of: a.of(reflect.TypeFor[dialect.TaskTrace]()), missing: true, parameters: []shape{
			inPath("id", "The task's id."), inQuery("turn", "The only turn, from 1.", shape{"type": "integer", "minimum": 1}),
			inQuery("limit", "How many turns.", shape{"type": "integer", "minimum": 1, "maximum": 50}),
		}},
		{path: "/totals", name: "totals", about: "The result of hub/totals.", kind: jsonType, of: a.of(reflect.TypeFor[dialect.Totals]()), parameters: []shape{
			inQuery("agentId", agentID, anyText), inQuery("project", "A directory.", anyText), inQuery("since", "Only tasks that were created at or after it.", moment),
			inQuery("by", "How tasks are grouped: agent, project, day; missing: all.", anyTexts),
		}},
		{path: "/events", name: "events", about: "What changes in the hub, as Server-Sent Events.", kind: "text/event-stream", parameters: []shape{
			inQuery("after", "The position of the last event that the client has seen; the header Last-Event-ID has precedence.", anyText),
			inQuery("since", "Without after: the time of the first event.", moment), inQuery("kind", "Kinds, or the words with which they begin.", anyTexts),
			inQuery("agent", "Only events of this agent.", anyText), inQuery("task", "Only events of this task.", anyText),
			inQuery("project", "Only events of this project.", anyText), inQuery("channel", "Only events of this channel.", anyText),
			inQuery("follow", "False ends the stream at the latest event.", shape{"type": "boolean"}),
		}, of: shape{"type": "string", "contentMediaType": jsonType, "contentSchema": a.of(reflect.TypeFor[events.Event]())}},
		{path: "/metrics", name: "metrics", about: "Metrics for Prometheus.", kind: "text/plain", of: anyText},
		{path: "/docs/", name: "docs", about: "The documentation of the hub's version.", kind: "text/html", of: anyText},
		{path: "/docs/openapi.json", name: "openapi", about: "This description.", kind: jsonType, of: shape{"type": "object"}},
		{path: "/docs/asyncapi.json", name: "asyncapi", about: "The description of the streams and of the socket.", kind: jsonType, of: shape{"type": "object"}},
		{path: "/ui", name: "ui", about: "The hub's page.", kind: "text/html", of: anyText},
	}
}

// get describes a path that is read.
func (a api) get(d document) shape {
	responses := shape{"200": shape{"description": d.about, "content": body(d.kind, d.of)}}
	if d.missing {
		responses["404"] = shape{"description": "There is none."}
	}
	if d.path == "/health" {
		responses["503"] = shape{"description": "The store does not answer, or the hub is stopping.", "content": body(d.kind, d.of)}
	}
	operation := shape{"operationId": d.name, "summary": strings.TrimSuffix(d.about, "."), "responses": a.answers(responses)}
	if d.parameters != nil {
		operation["parameters"] = d.parameters
	}
	if d.open {
		operation["security"] = []shape{{}}
	}
	return operation
}

// asyncAPI describes the socket, the streams, and the channels of projects.
func asyncAPI() ([]byte, error) {
	s := newShapes()
	a := api{s}
	channelMessage, err := embedSchema("schema/channel-message.schema.json")
	if err != nil {
		return nil, err
	}
	socket, operations := shape{}, shape{}
	a.components["Error"] = a.rpcError()
	failed := component("response", "error")
	socket[failed] = shape{"title": "Error", "payload": ref("Error")}
	for _, m := range methods {
		a.messages(m)
		request, response := component("request", m.name), component("response", m.name)
		socket[request] = shape{"title": m.name, "summary": m.about, "payload": ref(request)}
		socket[response] = shape{"title": "Result of " + m.name, "payload": ref(response)}
		operations[strings.ReplaceAll(m.name, "/", ".")] = shape{
			"action": "receive", "summary": m.about, "channel": channel("socket"), "messages": []shape{message("socket", request)},
			"reply": shape{"channel": channel("socket"), "messages": []shape{message("socket", response), message("socket", failed)}},
		}
	}
	taskEvent := s.of(reflect.TypeFor[dialect.Event]())
	socket["event"] = shape{"title": dialect.NotifyEvent, "summary": "An event of the stream of the request with this id.", "payload": shape{
		"type": "object", "required": []string{"jsonrpc", "method", "params"}, "properties": shape{
			"jsonrpc": shape{"const": "2.0"}, "method": shape{"const": dialect.NotifyEvent}, "params": shape{
				"type": "object", "required": []string{"id", "event"},
				"properties": shape{"id": id, "event": shape{"anyOf": []shape{taskEvent, s.of(reflect.TypeFor[events.Event]())}}},
			}}}}
	operations["socketEvents"] = shape{"action": "send", "summary": "The events of a stream on the socket.", "channel": channel("socket"), "messages": []shape{message("socket", "event")}}
	operations["streamEvents"] = shape{"action": "send", "summary": "The events of a task over HTTP.", "channel": channel("stream"), "messages": []shape{message("stream", "event")}}
	operations["hubEvents"] = shape{"action": "send", "summary": "What changes in the hub.", "channel": channel("events"), "messages": []shape{message("events", "event")}}
	operations["postMessage"] = shape{"action": "receive", "summary": "A message to a channel of a project.", "channel": channel("project"), "messages": []shape{message("project", "message")}}
	operations["readMessages"] = shape{"action": "send", "summary": "The messages of a channel of a project.", "channel": channel("project"), "messages": []shape{message("project", "message")}}
	components := shape{"schemas": s.components}
	return a.write(shape{
		"asyncapi": "3.0.0",
		"info": shape{
			"title": "Parley hub, socket, streams and channels", "version": apiVersion, "license": apiLicence,
			"description": "Written by `go run ./tools/docs` from the Go types. The HTTP interface is described by openapi.json. Members, methods and " +
				"kinds of events may be added within a major version.",
		},
		"defaultContentType": "application/json",
		"servers": shape{
			"socket": shape{"host": "localhost", "protocol": "unix", "pathname": "/.a2a-hub/hub.sock", "description": "A Unix socket in the user's data directory, mode 0600: one JSON value a line."},
			"http":   shape{"host": "127.0.0.1:8080", "protocol": "http"},
			"nats":   shape{"host": "127.0.0.1:4222", "protocol": "nats", "description": "The hub's bus, whose address and credential hub/bus/join returns, or the NATS server of the configuration."},
		},
		"channels": shape{
			"socket": shape{"address": "hub.sock", "servers": []shape{server("socket")}, "messages": socket},
			"stream": shape{"address": "/stream", "servers": []shape{server("http")}, "description": "The answer to a POST, as Server-Sent Events.", "messages": shape{"event": shape{
				"title": "An event of a task", "payload": shape{"type": "object", "required": []string{"jsonrpc", "id", "result"}, "properties": shape{"jsonrpc": shape{"const": "2.0"}, "id": id, "result": taskEvent}}}}},
			"events": shape{"address": "/events", "servers": []shape{server("http")}, "description": "Server-Sent Events; their id is the position.", "messages": shape{"event": shape{"title": "A change in the hub", "payload": s.of(reflect.TypeFor[events.Event]())}}},
			"project": shape{"address": "{namespace}.{channel}", "servers": []shape{server("nats")}, "description": "A channel of a project, stored in the stream {namespace}_{CHANNEL}.",
				"parameters": shape{"namespace": shape{"description": "That of the project."}, "channel": shape{"description": "The channel's name."}},
				"messages":   shape{"message": shape{"title": "A message of a channel", "payload": channelMessage}}},
		},
		"operations": operations,
		"components": components,
	}, checkMethods())
}

func channel(name string) shape { return shape{"$ref": "#/channels/" + name} }
func message(channel, name string) shape {
	return shape{"$ref": fmt.Sprintf("#/channels/%s/messages/%s", channel, name)}
}
func server(name string) shape { return shape{"$ref": "#/servers/" + name} }
