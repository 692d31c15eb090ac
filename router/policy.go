package router

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
)

// TierRule says whom agents of one tier may address.
type TierRule struct {
	SourceTier         agent.Tier   `json:"sourceTier"`         // of the sender
	AllowedTargetTiers []agent.Tier `json:"allowedTargetTiers"` // of those that it may address; empty: nobody
	// RequiresEscalationJustification asks for a justification in each
	// task-proposal to L0 or L1; see [JustificationField].
	RequiresEscalationJustification bool `json:"requiresEscalationJustification"`
}

// TierConfig is the set of rules. A tier without a rule may address nobody.
type TierConfig struct {
	Rules []TierRule `json:"rules"` // of two for one tier, both allow and the later one asks for justification
}

// DefaultTiers returns the rules of the specification: L0 may
// address all tiers, L1 L0 and L1, L2 L0 to L2, L3 all; L2 and L3 justify
// task-proposals to L0 and L1.
func DefaultTiers() TierConfig {
	return TierConfig{Rules: []TierRule{
		{SourceTier: agent.L0, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}},
		{SourceTier: agent.L1, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1}},
		{SourceTier: agent.L2, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2}, RequiresEscalationJustification: true},
		{SourceTier: agent.L3, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}, RequiresEscalationJustification: true},
	}}
}

// JustificationField is the field of a task-proposal's payload, an object, in
// which a justification stands: a text that is not blank.
const JustificationField = "escalationJustification"

// SandboxConfig says whom agents in sandboxes may address, and see: those in
// the same sandbox and those that are allowed. Agents outside of any sandbox are
// not bound by it.
type SandboxConfig struct {
	// Enforced false lets everybody address and see everybody.
	Enforced bool `json:"enforced"`
	// CrossSandboxAllowList holds agents that every sandbox may address.
	CrossSandboxAllowList []string `json:"crossSandboxAllowList"`
	// Allowed holds, by sandbox, further agents that this one may address.
	Allowed map[string][]string `json:"allowed,omitempty"`
}

// DefaultSandbox returns the configuration of a router that was told nothing:
// enforced, with nobody allowed.
func DefaultSandbox() SandboxConfig { return SandboxConfig{Enforced: true} }

// tiers is a TierConfig for quick answers, by levels.
type tiers struct {
	allowed [4][4]bool
	justify [4]bool
}

func compileTiers(c TierConfig) (*tiers, error) {
	t := new(tiers)
	for i, rule := range c.Rules {
		if !rule.SourceTier.Valid() {
			return nil, fmt.Errorf("rules[%d].sourceTier is not one of 0, 1, 2, 3", i)
		}
		from := rule.SourceTier.Level()
		t.justify[from] = rule.RequiresEscalationJustification
		for _, to := range rule.AllowedTargetTiers {
			if !to.Valid() {
				return nil, fmt.Errorf("rules[%d].allowedTargetTiers: not one of 0, 1, 2, 3", i)
			}
			t.allowed[from][to.Level()] = true
		}
	}
	return t, nil
}

// sandbox is a SandboxConfig for quick answers.
type sandbox struct {
	enforced bool
	all      map[string]bool
	allowed  map[string]map[string]bool
}

func compileSandbox(c SandboxConfig) *sandbox {
	s := &sandbox{enforced: c.Enforced, all: set(c.CrossSandboxAllowList), allowed: make(map[string]map[string]bool)}
	for id, agents := range c.Allowed {
		s.allowed[id] = set(agents)
	}
	return s
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, s := range list {
		m[s] = true
	}
	return m
}

// admits reports whether from may address and see to.
func (s *sandbox) admits(from, to agent.Identity) bool {
	return !s.enforced || from.SandboxID == "" || from.SandboxID == to.SandboxID ||
		s.all[to.ID] || s.allowed[from.SandboxID][to.ID]
}

// policy answers for one envelope of one sender.
type policy struct {
	tiers   *tiers
	sandbox *sandbox
	from    agent.Identity
	e       *envelope.Envelope

	looked    bool // for a justification
	justified bool
}

// checkAddress returns nil if the sender may address this agent at all.
func (p *policy) checkAddress(to agent.Identity) *Error {
	if !p.tiers.allowed[p.from.Tier.Level()][to.Tier.Level()] {
		return tierViolation(p.from, to)
	}
	if !p.sandbox.admits(p.from, to) {
		return errorf(CodeSandboxViolation, to.ID, "%q in sandbox %q may not address %q outside of it", p.from.ID, p.from.SandboxID, to.ID)
	}
	return nil
}

// check returns nil if the envelope may go to this agent.
func (p *policy) check(to agent.Identity) *Error {
	if err := p.checkAddress(to); err != nil {
		return err
	}
	from := p.from.Tier.Level()
	if p.e.Type == envelope.TaskProposal && p.tiers.justify[from] && to.Tier <= agent.L1 && !p.hasJustification() {
		return errorf(CodeEscalationRequired, to.ID, "a task-proposal from %q (%v) to %q (%v) needs the field %q", p.from.ID, p.from.Tier, to.ID, to.Tier, JustificationField)
	}
	return nil
}

// hasJustification looks into the payload, once for all recipients.
func (p *policy) hasJustification() bool {
	if p.looked {
		return p.justified
	}
	p.looked = true
	var fields map[string]json.RawMessage
	if json.Unmarshal(p.e.Payload, &fields) != nil {
		return false
	}
	var text string
	if json.Unmarshal(fields[JustificationField], &text) != nil {
		return false
	}
	p.justified = strings.TrimSpace(text) != ""
	return p.justified
}

// checkMetadata refuses an envelope whose metadata are not the card's.
func checkMetadata(from agent.Identity, e *envelope.Envelope) *Error {
	m := e.Metadata
	switch {
	case m == nil:
		return nil
	case m.Tier != from.Tier:
		return errorf(CodeMetadataMismatch, from.ID, "the envelope says that %q is of tier %v, its card says %v", from.ID, m.Tier, from.Tier)
	case m.SandboxID != from.SandboxID:
		return errorf(CodeMetadataMismatch, from.ID, "the envelope says that %q is in sandbox %q, its card says %q", from.ID, m.SandboxID, from.SandboxID)
	}
	return nil
}

// MayAddress returns nil if the rules of tiers and sandboxes let one agent
// address another, and otherwise the [*Error] with which [Router.Send] would
// refuse. A task-proposal may need a justification besides. Nothing is delivered
// or recorded, and neither needs to be registered: it lets an agent find out,
// before it works for somebody, whether it could answer.
func (r *Router) MayAddress(from, to agent.Identity) error {
	if !from.Tier.Valid() || !to.Tier.Valid() {
		return tierViolation(from, to)
	}
	p := policy{tiers: r.tiers.Load(), sandbox: r.sandbox.Load(), from: from}
	if err := p.checkAddress(to); err != nil {
		return err
	}
	return nil
}

// SetTierConfig replaces the tier rules.
func (r *Router) SetTierConfig(c TierConfig) error {
	t, err := compileTiers(TierConfig{Rules: slices.Clone(c.Rules)})
	if err != nil {
		return err
	}
	r.tiers.Store(t)
	return nil
}

// SetSandboxConfig replaces the sandbox rules.
func (r *Router) SetSandboxConfig(c SandboxConfig) { r.sandbox.Store(compileSandbox(c)) }

// Permit returns nil if a request of agent from may go to agent to, both of which
// must have cards, and otherwise the [*Error] that the router would give. It sends
// nothing and emits nothing: it is for those who show agents only what they may
// use.
func (r *Router) Permit(from, to string) error {
	sender, known := r.reg.Identity(from)
	if !known {
		return errorf(CodeSenderUnknown, from, "the sender %q has no registered card", from)
	}
	target, known := r.reg.Identity(to)
	if !known {
		return notFound(to)
	}
	p := policy{tiers: r.tiers.Load(), sandbox: r.sandbox.Load(), from: sender, e: &envelope.Envelope{Type: envelope.Request}}
	if err := p.check(target); err != nil {
		return err
	}
	return nil
}
