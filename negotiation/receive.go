package negotiation

import (
	"context"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/telemetry"
)

func (n *Negotiator) receive(ctx context.Context, e *envelope.Envelope) {
	n.addToThread(e)
	switch e.Type {
	case envelope.TaskProposal:
		if n.o.Only != nil && !n.o.Only(e) {
			return
		}
		n.receiveProposal(ctx, e)
	case envelope.TaskAccept, envelope.TaskReject:
		n.receiveAnswer(ctx, e)
	case envelope.ErrorMessage:
		n.receiveRefusal(ctx, e)
	}
}

// addToThread adds an envelope to its thread if that has a negotiation.
func (n *Negotiator) addToThread(e *envelope.Envelope) {
	n.mu.Lock()
	ours := n.store.threads[e.CorrelationID] > 0
	n.mu.Unlock()
	if ours {
		n.o.Threads.Add(e)
	}
}

func (n *Negotiator) receiveProposal(ctx context.Context, e *envelope.Envelope) {
	offer, err := DecodeOffer(e)
	if err != nil {
		n.rejectUnseen(ctx, e, offer.ProposalID, InvalidProposal, err)
		return
	}
	thread := e.CorrelationID
	if thread == "" {
		thread = e.ID
	}
	p := offer.proposal(e.Sender, n.id, thread)
	switch err := n.open(p, offer.deadline()); {
	case err == nil:
		n.o.Threads.Add(e)
		n.call(ctx, &n.proposed, p)
	case codeOf(err) == CodeFull:
		n.rejectUnseen(ctx, e, p.ID, Overloaded, err)
	default:
		n.report(e, err) // a duplicate: the first one counts
	}
}

// rejectUnseen rejects a proposal that the agent's handlers do not get.
func (n *Negotiator) rejectUnseen(ctx context.Context, e *envelope.Envelope, id string, why Reason, cause error) {
	n.report(e, cause)
	a := Answer{ProposalID: id, AgentID: n.id, RejectionReason: why, Message: text.Valid(cause.Error(), maxMessage)}
	n.reply(ctx, e, envelope.TaskReject, a)
}

func (n *Negotiator) receiveAnswer(ctx context.Context, e *envelope.Envelope) {
	var a Answer
	if err := e.Unmarshal(&a); err != nil {
		n.report(e, &Error{Code: CodeInvalid, Message: "the payload is not an answer", Err: err})
		return
	}
	if err := a.check(e.Type); err != nil {
		n.report(e, err)
		return
	}
	p, err := n.applyAnswer(e, a)
	if err == nil {
		n.call(ctx, &n.settled, p)
		return
	}
	n.report(e, err)
	if e.Type == envelope.TaskAccept && mustRefuse(err.Code, p) {
		n.refuse(ctx, e, err)
	}
}

// mustRefuse reports whether the agent must learn that its acceptance does not count. A
// repeated acceptance does not matter; an agent that was not asked gets no answer.
func mustRefuse(code Code, p Proposal) bool {
	return code == CodeNotFound || code == CodeTimeout || code == CodeSettled && p.Status == Rejected
}

// applyAnswer stores an answer. With an error it returns the unchanged proposal.
func (n *Negotiator) applyAnswer(e *envelope.Envelope, a Answer) (Proposal, *Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.store.entries[a.ProposalID]
	switch {
	case x == nil || n.closed:
		return Proposal{}, notFound(a.ProposalID)
	case x.incoming || e.Sender != x.p.Recipient || !isOf(a.AgentID, e.Sender) || e.CorrelationID != x.p.CorrelationID:
		return x.p, errorf(CodeForged, a.ProposalID, "%q answers proposal %q, which it did not get in this thread", e.Sender, a.ProposalID)
	case x.p.Status == TimedOut:
		return x.p, errorf(CodeTimeout, a.ProposalID, "the answer of %q to proposal %q is late", e.Sender, a.ProposalID)
	case x.p.Status != Pending:
		return x.p, errorf(CodeSettled, a.ProposalID, "%q has answered proposal %q before", e.Sender, a.ProposalID)
	}
	a.AgentID = e.Sender
	return n.settle(x, x.p.settle(e.Type, a)), nil
}

// isOf reports whether an agent that names itself is the sender: an agent of another program, known here as NAME@KEY,
// is NAME there.
func isOf(agentID, sender string) bool {
	name, _ := agent.SplitID(sender)
	return agentID == sender || agentID == name
}

func (n *Negotiator) refuse(ctx context.Context, e *envelope.Envelope, why *Error) {
	r := Refusal{ProposalID: why.Subject, Code: why.Code, Message: why.Message}
	n.reply(ctx, e, envelope.ErrorMessage, r)
}

// reply sends an answer of the package itself. If that fails, the other side's proposal times out.
func (n *Negotiator) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) {
	out, err := e.Reply(n.id, t, payload)
	if err == nil {
		_, err = n.r.Send(ctx, out)
	}
	if err != nil {
		n.report(e, err)
	}
}

// receiveRefusal handles the proposer's refusal of an acceptance.
func (n *Negotiator) receiveRefusal(ctx context.Context, e *envelope.Envelope) {
	var r Refusal
	if e.Unmarshal(&r) != nil || r.ProposalID == "" {
		return // an error about something else
	}
	n.mu.Lock()
	x := n.store.entries[r.ProposalID]
	if x == nil || !x.incoming || e.Sender != x.p.Proposer || e.CorrelationID != x.p.CorrelationID {
		n.mu.Unlock()
		return
	}
	x.refused = x.answering // Accept may not have returned yet
	if x.p.Status != Accepted {
		n.mu.Unlock()
		return
	}
	x.p = x.p.timedOut()
	p := x.p
	n.mu.Unlock()
	n.call(ctx, &n.settled, p)
}

// report emits an event about a bad envelope.
func (n *Negotiator) report(e *envelope.Envelope, err error) {
	event := telemetry.Of(telemetry.ErrorEvent, e)
	event.Code, event.Detail = string(codeOf(err)), text.Valid(err.Error(), maxMessage)
	if codeOf(err) == CodeForged {
		event.Type = telemetry.Security
	}
	n.r.Telemetry().Emit(event)
}
