// Package dialect is the hub's JSON-RPC dialect: the methods of the hub's
// specification (hub/*, message/*, tasks/*) with its shapes, those of A2A 0.3,
// and its error codes. It translates between them and package hub, and is the
// same on the Unix socket and on HTTP. Pure A2A is package a2aserver's.
//
// Parameters are decoded strictly where the dialect knows them: by case, of the
// right type, each once, and an error names the one that is wrong
// ("message.parts[0].text"). Parameters that it does not know are ignored, as
// A2A clients send more than the hub's specification lists.
//
// Where the specification leaves a shape open, this package decides:
// hub/tasks/list and hub/contexts/list answer with arrays, as hub/agents/list
// does; hub/tasks/page answers with a page and a cursor. Uptime is in
// milliseconds. A health's lastCheck is null before the first check.
//
// Streams (message/stream, tasks/resubscribe) send the task first, then status
// and artifact updates; the last event is a status update with final set. Over
// HTTP each is the result of a JSON-RPC response in an event of the SSE stream.
// On the socket each is a notification of the method stream/event with the
// request's id in its params, and the one response to the request, the task as
// it then is, ends the stream.
package dialect
