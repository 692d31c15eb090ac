// Package documents keeps shared documents by name, on the hub's bus.
//
// # What is stored
//
// Each change goes to a log: a subject of its own for each document and epoch, in one
// stream that drops nothing by itself. Now and then the state goes to another
// stream, in parts, and the head, a key, then says so. A document is its newest snapshot and the
// log behind it; the log before the snapshot but one is purged.
//
// A snapshot counts only after it was loaded into an engine of its own and found
// equal, order of lists included, and after it was read back. The head
// is changed last, if nobody else has. So whatever the moment at which the process dies, head,
// snapshot and log fit together.
//
// # Who writes
//
// The hub, which has the store for itself: agents, people and browsers reach
// documents through it. An edit returns when it is durable as the bus's mode says.
package documents
