// Package router delivers envelopes: to an agent by id, to one that has a
// capability, or to all.
//
//	r := router.New(reg, router.Options{})
//	r.OnReceive("venus", func(ctx context.Context, e *envelope.Envelope) { … })
//	result, err := r.Send(ctx, e)
//
// # Who decides
//
// The registry does. Tier and sandbox are those of the sender's registered card;
// an envelope whose metadata says otherwise is refused, and so is one of a sender
// without a card. Then the tier rules and the sandbox rules must allow the
// delivery; see [TierConfig] and [SandboxConfig].
//
// Of the agents with a capability the router takes one that the rules let the
// sender address, local ones before remote ones; among the first eight of these,
// in order of registration, the one with the fewest envelopes waiting, and of
// equals the first. The sender itself is only taken if nobody else is left.
//
// A broadcast reaches every agent but the sender that the rules let it address;
// [Result.Skipped] lists the others and why.
//
// # Delivery
//
// Each receiver has a mailbox of its own, and whenever a goroutine is held up by
// one receiver, another goes on with the next. So a receiver that is slow or
// panics delays nobody else. A mailbox is bounded: when it is full,
// [Router.Send] says so at once ([CodeMailboxFull]) and [Router.SendWait] waits.
// One sender's envelopes reach a receiver in the order in which they were sent.
//
// For agents elsewhere the mailbox is emptied into a [Forwarder], which is a
// channel.Manager as a rule.
//
// # What is recorded
//
// For every envelope a routing-decision event; for every one that was taken a
// message-sent event, and a message-received event for each handler's turn; for
// every delivery between tiers a cross-tier event; for every refusal by policy a
// security event. Options.Audit gets the decisions, the cross-tier deliveries and
// the refusals.
package router
