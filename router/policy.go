package router

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/clock"
	"github.com/parleyhub/parley/telemetry"
)

// TierRule lists the tiers that agents of one tier may address.
type TierRule struct {
	SourceTier         agent.Tier   `json:"sourceTier"`         // the sender's
	AllowedTargetTiers []agent.Tier `json:"allowedTargetTiers"` // the recipients'; empty: none
	// RequiresEscalationJustification requires a justification in each task-proposal to
	// L0 or L1; see [JustificationField].
	RequiresEscalationJustification bool `json:"requiresEscalationJustification"`
}

// TierConfig is the set of rules. A tier without a rule may address nobody.
type TierConfig struct {
	Rules []TierRule `json:"rules"` // several for a tier add up; the last decides about justification
}

// DefaultTiers returns the rules of the specification: L0 and L3 may address all
// tiers, L1 L0 and L1, L2 L0 to L2; L2 and L3 must justify task-proposals to L0 and L1.
func DefaultTiers() TierConfig {
	return TierConfig{Rules: []TierRule{
		{SourceTier: agent.L0, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}},
		{SourceTier: agent.L1, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1}},
		{SourceTier: agent.L2, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2}, RequiresEscalationJustification: true},
		{SourceTier: agent.L3, AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2, agent.L3}, RequiresEscalationJustification: true},
	}}
}

// JustificationField is the field of a task-proposal's payload, an object, with the
// justification: a text that is not blank.
const JustificationField = "escalationJustification"

// SandboxConfig limits which agents a sandboxed agent may address and discover: those
// in the same sandbox and those listed here. It does not limit other agents.
type SandboxConfig struct {
	Enforced              bool                `json:"enforced"`              // false: there are no limits
	CrossSandboxAllowList []string            `json:"crossSandboxAllowList"` // agents that every sandbox may address
	Allowed               map[string][]string `json:"allowed,omitempty"`     // by sandbox, further agents that it may address
}

// DefaultSandbox returns the default configuration: enforced, with empty lists.
func DefaultSandbox() SandboxConfig { return SandboxConfig{Enforced: true} }

// tiers is a compiled TierConfig, by levels.
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

// sandbox is a compiled SandboxConfig.
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

// admits reports whether from may address and discover to. For an identity with nothing but an id, whose card is not
// known, it reports whether from may know of such an agent.
func (s *sandbox) admits(from, to agent.Identity) bool {
	return !s.enforced || from.SandboxID == "" || from.SandboxID == to.SandboxID ||
		s.all[to.ID] || s.allowed[from.SandboxID][to.ID]
}

// policy decides about one envelope of one sender.
type policy struct {
	tiers   *tiers
	sandbox *sandbox
	answers *answers
	from    agent.Identity
	e       *envelope.Envelope

	looked    bool // justified is set
	justified bool
}

// checkAddress returns nil if the sender may address this agent.
func (p *policy) checkAddress(to agent.Identity) *Error {
	if !p.sandbox.admits(p.from, to) { // first: the tier of an agent outside is nobody's business in the sandbox
		return sandboxViolation(p.from, to.ID)
	}
	if !p.tiers.allowed[p.from.Tier.Level()][to.Tier.Level()] {
		return tierViolation(p.from, to)
	}
	return nil
}

// check returns nil if the envelope may be delivered to this agent.
func (p *policy) check(to agent.Identity) *Error {
	if err := p.checkAddress(to); err != nil {
		if err.Code == CodeTierViolation && p.answers.expected(p.e, to.ID) {
			return nil
		}
		return err
	}
	from := p.from.Tier.Level()
	if p.e.Type == envelope.TaskProposal && p.tiers.justify[from] && to.Tier <= agent.L1 && !p.hasJustification() {
		return errorf(CodeEscalationRequired, to.ID, "a task-proposal from %q (%v) to %q (%v) needs the field %q", p.from.ID, p.from.Tier, to.ID, to.Tier, JustificationField)
	}
	return nil
}

// expectAnswer lets an agent answer the envelope, if it is a justified task-proposal and the tier rules do not let the
// agent address the sender.
func (p *policy) expectAnswer(to agent.Identity) {
	if p.e.Type != envelope.TaskProposal || p.tiers.allowed[to.Tier.Level()][p.from.Tier.Level()] || !p.hasJustification() {
		return
	}
	p.answers.expect(question{pair{proposer: p.from.ID, asked: to.ID}, p.e.Thread()})
}

// hasJustification reads the payload, once for all recipients.
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

// checkMetadata refuses an envelope whose metadata contradict the sender's card.
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

// MayAddress returns nil if the tier and sandbox rules permit one agent to address
// another, and otherwise the [*Error] of [Router.Send]. It neither delivers nor records
// anything, ignores the justification of task-proposals, and the agents need no cards:
// an agent can find out whether it could answer before it works.
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

// PermitAnswer returns nil if an agent may answer a task-proposal, which is justified or not, of another. Its error is
// that of the answer. If the proposal may not be sent, or a card is not known, it returns nil: [Router.Send] refuses it.
func (r *Router) PermitAnswer(proposer, asked string, justified bool) error {
	to, known := r.reg.Identity(proposer)
	from, knowsAsked := r.reg.Identity(asked)
	if !known || !knowsAsked || r.MayAddress(to, from) != nil {
		return nil
	}
	err := r.MayAddress(from, to)
	if CodeOf(err) == CodeTierViolation && justified {
		return nil
	}
	return err
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

// Permit is [Router.MayAddress] for the ids of two registered agents. For an agent in a sandbox, an unknown agent and
// one outside are the same: CodeSandboxViolation.
func (r *Router) Permit(from, to string) error {
	sender, known := r.reg.Identity(from)
	if !known {
		return senderUnknown(from)
	}
	target, known := r.reg.Identity(to)
	if !known {
		return r.unknown(sender, to)
	}
	return r.MayAddress(sender, target)
}

// unknown returns the error for an agent without a card.
func (r *Router) unknown(from agent.Identity, to string) *Error {
	if !r.sandbox.Load().admits(from, agent.Identity{ID: to}) {
		return sandboxViolation(from, to)
	}
	return notFound(to)
}

// PermitChannel returns nil if the rules permit agent from to open a channel to agent to, as far as their cards are
// known: before the ends of a channel have exchanged them, the envelopes decide. A refusal is recorded as
// [Router.Send] does. A channel.Manager asks it at both ends.
func (r *Router) PermitChannel(from, to string) error {
	sender, known := r.reg.Identity(from)
	if !known {
		return nil
	}
	target, known := r.reg.Identity(to)
	if !known {
		return nil
	}
	p := policy{tiers: r.tiers.Load(), sandbox: r.sandbox.Load(), from: sender}
	err := p.checkAddress(target)
	if err == nil || err.Code == CodeTierViolation && r.answers.open(from, to) {
		return nil
	}
	d := delivery{r: r, e: &envelope.Envelope{Sender: from, Recipient: to}, policy: p}
	d.refuse(target, err)
	return err
}

// PermitEnvelope returns nil if the rules of [Router.Send] permit an envelope that goes over a channel to agent to,
// or has come over one, without the router. It records a refusal as Send does. A channel.Manager asks it for every
// envelope.
func (r *Router) PermitEnvelope(to string, e *envelope.Envelope) error {
	d := delivery{r: r, e: e, began: clock.Nano(), result: Result{Path: telemetry.PathRemote, TargetAgentID: to}}
	err := d.permit(to)
	if err == nil {
		return nil
	}
	_, refusal := d.finish(err)
	return refusal
}

// permit checks an envelope for one agent.
func (d *delivery) permit(to string) *Error {
	if err := d.identify(); err != nil {
		return err
	}
	target, known := d.r.reg.Identity(to)
	if !known {
		d.target = agent.Identity{ID: to}
		return d.r.unknown(d.policy.from, to)
	}
	d.target = target
	if err := d.policy.check(target); err != nil {
		return err
	}
	d.policy.expectAnswer(target)
	return nil
}
