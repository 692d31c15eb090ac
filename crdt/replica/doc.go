// Package replica synchronizes a document among agents that are linked by channels.
//
//	r, err := replica.New(replica.Options{Agent: "mars", State: "plan"})
//	detach, err := r.Attach(ch) // a *channel.Channel, over any transport
//	err = r.Edit(ctx, func(d *crdt.Doc) error { return d.Map("todo").Set("k", 1) })
//	cancel := r.OnUpdate(func(u replica.Update) { … })
//
// # Guarantees
//
// A change is sent to all linked replicas, and forwarded by them. It is applied once, after all changes
// that its maker had seen; concurrent changes all count. Each carries a vector clock that counts updates by
// session, since state vectors do not change with deletes. A message that cannot be decoded is logged with
// its source and skipped, and the state is asked for instead.
//
// Linked replicas converge even if messages are lost: a new link begins with an exchange of the missing
// state, and digests of the document, including deletes and the order of lists, are compared periodically
// (Options.Interval).
//
// # Restarts
//
// A Replica writes under a random client id and in a random session, so a process that starts again, even
// from an old [Saved], is distinct from the former one. What was not sent when a process died is lost;
// [Replica.Flush] blocks until it has been passed to the channels.
//
// # Trust
//
// The channel determines the identity of the agent at the other end, and Options.Access its rights to read,
// to write and to forward changes of others. A client id belongs to the session that used it first. Updates
// are checked before they are applied ([crdt.Doc.Admit]). All replicas need the same Options.Limits: one
// that refused what others applied would differ for good. The maker of a refused update is notified, and
// must open the document again.
//
// # Concurrency
//
// One goroutine owns the document, the clock and the buffered updates, and runs all calls in order. No lock
// is held and nothing waits for a link: if a link's queue is full it is dropped, and the peer asks for the
// state.
package replica
