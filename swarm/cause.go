package swarm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/negotiation"
	"github.com/parleyhub/parley/router"
)

// Cause is why an agent does not take part in a swarm, or got no work: as an error, a *negotiation.Error with the code
// Proposal or a *router.Error with the code Route, or both. It is stored with a failed swarm, so every coordinator and
// every later process gives the same error.
type Cause struct {
	Agent string `json:"agent"`
	// Proposal is PROPOSAL_REJECTED for an agent that refused, PROPOSAL_TIMEOUT for one that did not answer, and another
	// code for a proposal that could not be sent; "" if it is work that could not be sent.
	Proposal negotiation.Code   `json:"proposal,omitempty"`
	Reason   negotiation.Reason `json:"reason,omitempty"` // of a rejection
	Route    router.Code        `json:"route,omitempty"`  // why nothing can be sent to the agent, e.g. TIER_VIOLATION
	Message  string             `json:"message"`
}

// Bounds of the causes of one failure.
const (
	maxCauses    = 64
	maxNamed     = 3   // in a text
	maxCauseText = 500 // bytes of a message
)

// Error returns the agent, the code and the message.
func (c *Cause) Error() string {
	return fmt.Sprintf("%s: %s (%s)", c.Agent, c.Message, cmp.Or(string(c.Route), string(c.Proposal)))
}

// Unwrap returns the error of package negotiation, which wraps the one of package router.
func (c *Cause) Unwrap() error {
	var route error
	if c.Route != "" {
		route = &router.Error{Code: c.Route, Subject: c.Agent, Message: c.Message}
	}
	if c.Proposal == "" {
		return route
	}
	if route != nil {
		return &negotiation.Error{Code: c.Proposal, Subject: c.Agent, Message: "it cannot be invited", Err: route}
	}
	return &negotiation.Error{Code: c.Proposal, Subject: c.Agent, Message: c.Message}
}

// causes are the errors of several agents as one, by agent.
type causes []Cause

// Error names the first of them.
func (all causes) Error() string {
	var named []string
	for i := range all[:min(len(all), maxNamed)] {
		named = append(named, all[i].Error())
	}
	if more := len(all) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(named, "; ")
}

// Unwrap returns all of them.
func (all causes) Unwrap() []error {
	errs := make([]error, len(all))
	for i := range all {
		errs[i] = &all[i]
	}
	return errs
}

// blame notes why an agent does not take part; only its latest cause counts.
func (l *leader) blame(c Cause) {
	c.Message = text.Valid(c.Message, maxCauseText)
	if _, known := l.causes[c.Agent]; known || len(l.causes) < maxCauses {
		l.causes[c.Agent] = c
	}
}

// blameError is blame for an error of the negotiator or the router.
func (l *leader) blameError(who string, err error) {
	c := Cause{Agent: who, Proposal: negotiation.CodeOf(err), Route: router.CodeOf(err), Message: err.Error()}
	if refusal, ok := errors.AsType[*router.Error](err); ok {
		c.Message = refusal.Error()
	}
	l.blame(c)
}

// blameAnswer is blame for a proposal that was not accepted.
func (l *leader) blameAnswer(p negotiation.Proposal) {
	c := Cause{Agent: p.Recipient, Proposal: negotiation.CodeRejected, Reason: p.RejectionReason, Message: "it refused: " + string(p.RejectionReason)}
	if p.RejectionMessage != "" {
		c.Message += ", " + p.RejectionMessage
	}
	if p.Status == negotiation.TimedOut {
		c.Proposal, c.Message = negotiation.CodeTimeout, "it did not answer in time"
	}
	l.blame(c)
}

// fail ends the swarm with the reason and what is known about the agents that do not take part.
func (l *leader) fail(ctx context.Context, reason string) {
	how := status{Status: Failed, Error: reason}
	for _, who := range sortedKeys(l.causes) {
		how.Causes = append(how.Causes, l.causes[who])
	}
	if len(how.Causes) > 0 {
		how.Error += ": " + causes(how.Causes).Error()
	}
	l.conclude(ctx, how)
}

// failure is the error of a swarm that failed.
func failure(s Session) error {
	if s.Status != Failed {
		return nil
	}
	if len(s.Causes) == 0 {
		return errorf(CodeFailed, s.ID, "the swarm failed: %s", s.Error)
	}
	why := causes(slices.Clone(s.Causes))
	err := errorf(CodeFailed, s.ID, "the swarm failed: %s", strings.TrimSuffix(s.Error, ": "+why.Error()))
	err.Err = why
	return err
}
