package negotiation

import (
	"context"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/telemetry"
)

// receive takes what arrives for the agent.
func (n *Negotiator) receive(ctx context.Context, e *envelope.Envelope) {
	n.keep(e)
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

// keep adds an envelope to its thread if that is one of the negotiations.
func (n *Negotiator) keep(e *envelope.Envelope) {
	n.mu.Lock()
	ours := n.book.threads[e.CorrelationID] > 0
	n.mu.Unlock()
	if ours {
		n.o.Threads.Add(e)
	}
}

func (n *Negotiator) receiveProposal(ctx context.Context, e *envelope.Envelope) {
	offer, err := DecodeOffer(e)
	if err != nil {
		n.turnDown(ctx, e, offer.ProposalID, InvalidProposal, err)
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
		n.proposed.call(ctx, p)
	case codeOf(err) == CodeFull:
		n.turnDown(ctx, e, p.ID, Overloaded, err)
	default:
		n.complain(e, err) // known already: the first one counts
	}
}

// turnDown rejects a proposal that the agent's handlers never see.
func (n *Negotiator) turnDown(ctx context.Context, e *envelope.Envelope, id string, why Reason, cause error) {
	n.complain(e, cause)
	a := Answer{ProposalID: id, AgentID: n.id, RejectionReason: why, Message: clip(cause.Error())}
	n.reply(ctx, e, envelope.TaskReject, a)
}

func (n *Negotiator) receiveAnswer(ctx context.Context, e *envelope.Envelope) {
	var a Answer
	if err := e.Unmarshal(&a); err != nil {
		n.complain(e, &Error{Code: CodeInvalid, Message: "the payload is not an answer", Err: err})
		return
	}
	if err := a.check(e.Type); err != nil {
		n.complain(e, err)
		return
	}
	p, err := n.take(e, a)
	if err == nil {
		n.settled.call(ctx, p)
		return
	}
	n.complain(e, err)
	if e.Type == envelope.TaskAccept && inVain(err.Code, p) {
		n.refuse(ctx, e, err)
	}
}

// inVain tells whether somebody accepted who must learn that it does not count. One
// who only says it twice need not, and one who was not asked shall not.
func inVain(code Code, p Proposal) bool {
	return code == CodeNotFound || code == CodeTimeout || code == CodeSettled && p.Status == Rejected
}

// take enters an answer. With an error it returns the proposal as it stands.
func (n *Negotiator) take(e *envelope.Envelope, a Answer) (Proposal, *Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.book.entries[a.ProposalID]
	switch {
	case x == nil || n.closed:
		return Proposal{}, notFound(a.ProposalID)
	case x.asked || e.Sender != x.p.Recipient || a.AgentID != e.Sender || e.CorrelationID != x.p.CorrelationID:
		return x.p, errorf(CodeForged, a.ProposalID, "%q answers proposal %q, which it was not asked in this thread", e.Sender, a.ProposalID)
	case x.p.Status == TimedOut:
		return x.p, errorf(CodeTimeout, a.ProposalID, "the answer of %q to proposal %q comes too late", e.Sender, a.ProposalID)
	case x.p.Status != Pending:
		return x.p, errorf(CodeSettled, a.ProposalID, "%q has answered proposal %q before", e.Sender, a.ProposalID)
	}
	return n.settle(x, x.p.settle(e.Type, a)), nil
}

func (n *Negotiator) refuse(ctx context.Context, e *envelope.Envelope, why *Error) {
	r := Refusal{ProposalID: why.Subject, Code: why.Code, Message: why.Message}
	n.reply(ctx, e, envelope.ErrorMessage, r)
}

// reply answers on the package's own account. Where that fails the other side's
// time runs out.
func (n *Negotiator) reply(ctx context.Context, e *envelope.Envelope, t envelope.Type, payload any) {
	out, err := e.Reply(n.id, t, payload)
	if err == nil {
		_, err = n.r.Send(ctx, out)
	}
	if err != nil {
		n.complain(e, err)
	}
}

// receiveRefusal hears from the proposer that an acceptance does not count.
func (n *Negotiator) receiveRefusal(ctx context.Context, e *envelope.Envelope) {
	var r Refusal
	if e.Unmarshal(&r) != nil || r.ProposalID == "" {
		return // an error about something else
	}
	n.mu.Lock()
	x := n.book.entries[r.ProposalID]
	if x == nil || !x.asked || e.Sender != x.p.Proposer || e.CorrelationID != x.p.CorrelationID {
		n.mu.Unlock()
		return
	}
	x.refused = x.answering // it may be here before Accept has noted what it sent
	if x.p.Status != Accepted {
		n.mu.Unlock()
		return
	}
	x.p = x.p.timedOut()
	p := x.p
	n.mu.Unlock()
	n.settled.call(ctx, p)
}

// complain records what is wrong with an envelope.
func (n *Negotiator) complain(e *envelope.Envelope, err error) {
	event := telemetry.Of(telemetry.ErrorEvent, e)
	event.Code, event.Detail = string(codeOf(err)), clip(err.Error())
	if codeOf(err) == CodeForged {
		event.Type = telemetry.Security
	}
	n.r.Telemetry().Emit(event)
}
