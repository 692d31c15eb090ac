// Package negotiation lets agents propose tasks to each other, and accept or
// reject them.
//
// A [Negotiator] belongs to one registered agent and receives beside the agent's
// own handlers:
//
//	n, err := negotiation.New(r, "sun", negotiation.Options{})
//	p, err := n.Propose(ctx, "venus", negotiation.Terms{…})
//	p, err = n.Wait(ctx, p.ID) // accepted, rejected or timed out
//
// and at the other agent:
//
//	n.OnProposal(func(ctx context.Context, p negotiation.Proposal) {
//		err := n.Accept(ctx, p.ID, 10*time.Minute)
//	})
//
// Proposal, answer and all that follows on the task share one correlation id, see
// [Negotiator.Send] and [Negotiator.Thread]. Both sides count the time for an
// answer on their own clocks, the proposer from when it sends and the other from
// when the proposal arrives: clocks of different machines are never compared. The
// proposer's word counts. An answer that comes too late, a second time, or from
// somebody who was not asked changes nothing; whoever accepted in vain is told.
package negotiation
