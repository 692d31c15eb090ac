// Package a2a speaks A2A, the Agent2Agent protocol, for the hub: versions
// 1.0 and 0.3 over JSON-RPC, REST and gRPC. Every binding of either version ends
// in the same [Handler], and that one in the hub: there is no second task path.
//
// One HTTP path serves both versions and both HTTP bindings: JSON-RPC is a POST
// to the path itself, REST lies below it (0.3 below its /v1):
//
//	/a2a                                the hub's agents, by tenant or metadata "targetAgent"
//	/agents/{id}/a2a                    one agent
//	…/.well-known/agent-card.json       the card of either
//	/.well-known/agent-card.json        the hub's card, for clients of both versions
//
// REST and gRPC are the SDK's bindings, with what they lack put around them (see
// restGate). JSON-RPC is implemented here, on the SDK's types and conversions:
// the SDK's binding decodes before it can tell a malformed request from malformed
// parameters, changes large numeric ids, answers a deletion with neither result
// nor error, and sends the status line of a stream before it knows that the
// stream begins with an error. None of that can be mended from outside without
// reading and writing each request twice.
package a2a
