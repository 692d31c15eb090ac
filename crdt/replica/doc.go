// Package replica keeps one document the same among agents that are linked by
// channels (requirement 9): the sync channel of the specification.
//
//	r, err := replica.New(replica.Options{Agent: "mars", State: "plan"})
//	detach, err := r.Attach(ch) // a *channel.Channel, over whatever transport
//	err = r.Edit(ctx, func(d *crdt.Doc) error { return d.Map("todo").Set("k", 1) })
//	cancel := r.OnUpdate(func(u replica.Update) { … })
//
// # What is promised
//
// A change made here is sent to all who are linked (Req 9.1), and from them to
// those that they are linked with. A change that arrives is applied once
// (Req 9.2), after all that its maker had seen; concurrent ones all count (Req
// 9.3). Each carries a vector clock (Req 9.4), which counts updates by session:
// by state vectors, a change that only deletes would look like one that is known. One that
// cannot be read is logged with its source and skipped (Req 9.5), and what is
// then missing is asked for.
//
// Whatever is lost on the way, replicas that are linked become equal: a new link
// begins with an exchange of what each lacks, and digests are compared now and
// then (Options.Interval), deletes and the order of lists included.
//
// # Restarts
//
// A Replica writes under a client id and in a session that it drew at random, so that
// a process that begins anew, even from an old [Saved], is never taken for the
// one before. What was not sent when a process died is lost; [Replica.Flush]
// waits until it has been handed to the channels.
//
// # Trust
//
// The agent at the other end is who the channel says. It may read, write, and
// speak for others as Options.Access allows. A client id belongs to the session
// that used it first. Updates are checked before they are applied ([crdt.Doc.Admit]);
// all replicas need the same Options.Limits, since one that refused what others
// took would differ for ever. Who was refused is told so, and must begin anew.
//
// # Concurrency
//
// One goroutine owns the document, the clock and what is held back; calls are run by it
// in turn. No lock is held, and nothing waits for a link: what a slow one does
// not take is dropped, and it is told to ask.
package replica
