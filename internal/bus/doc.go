// Package bus is Parley's NATS: embedded in the hub's process, or an external
// server or cluster by URL. It owns durability, connection errors, and the
// order of a graceful shutdown.
package bus
