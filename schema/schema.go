// Package schema ships the JSON Schemas (draft 2020-12) of the agent card, the
// envelope and a channel's message, and that of an entry in the registry of the
// agents' network (draft 07, as specified), for programs in other languages.
// Tests hold them and the Go types together: both accept and both refuse the
// same documents.
package schema

import _ "embed"

// AgentCard is the schema of an agent card's JSON.
//
//go:embed agent-card.schema.json
var AgentCard []byte

// Envelope is the schema of an envelope's JSON.
//
//go:embed envelope.schema.json
var Envelope []byte

// ChannelMessage is the schema of what a channel's stream stores.
//
//go:embed channel-message.schema.json
var ChannelMessage []byte

// AgentRegistry is the schema of an entry in the registry of the agents' network.
//
//go:embed agent-registry.schema.json
var AgentRegistry []byte
