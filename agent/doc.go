// Package agent says what an agent is: the [Card] by which it makes itself
// known, with its [Tier], its capabilities, its endpoints and its sandbox.
//
// A Card is a plain value. It travels as JSON in the shape that the
// coordination specification gives it (see the schema in package schema); what
// [Encode] writes, [Decode] reads back without loss. [Card.Validate] names every
// field that is missing or wrong, not only the first.
//
// Nothing in this package blocks, starts a goroutine or holds shared state.
package agent
