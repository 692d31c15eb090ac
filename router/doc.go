// Package router delivers envelopes: to an agent by id, to an agent with a capability,
// or to all.
//
//	r, err := router.New(reg, router.Options{})
//	r.OnReceive("venus", func(ctx context.Context, e *envelope.Envelope) { fmt.Println(e.Sender) })
//	result, err := r.Send(ctx, e)
//
// # Policy
//
// The sender's tier and sandbox are those of its registered card. The router refuses an
// envelope of a sender without a card and one whose metadata contradict the card; then
// the tier rules ([TierConfig]) and the sandbox rules ([SandboxConfig]) apply.
//
// Among the agents with a capability the router chooses one that the rules permit,
// local ones before remote ones: of the first eight in order of registration the one
// with the fewest queued envelopes. It chooses the sender itself only if nobody else is
// left. A broadcast goes to every permitted agent but the sender; [Result.Skipped]
// lists the others, each with the reason.
//
// # Delivery
//
// Each receiver has a bounded mailbox, and a goroutine that a receiver blocks is
// replaced, so that a slow or panicking receiver delays nobody else. When a mailbox is
// full, [Router.Send] returns [CodeMailboxFull] and [Router.SendWait] waits. One
// sender's envelopes reach a receiver in the order in which they were sent. Envelopes
// to remote agents are queued for a [Forwarder], usually a channel.Manager.
//
// # Events
//
// The router emits a routing-decision event for every envelope, message-sent for every
// accepted one, message-received for every envelope that the handlers get, cross-tier
// for every delivery between tiers, and security for every refusal by policy.
// Options.Audit gets the decisions, the cross-tier deliveries and the refusals.
package router
