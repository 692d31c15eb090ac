package toolbox

import (
	"context"
	"maps"
	"regexp"
	"unicode/utf8"
)

var (
	agentPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*$`)
)

// Provider is what one agent offers. It is safe for concurrent use.
type Provider struct {
	box    *Box
	id     string
	number int             // of its coming
	source string          // who it is in errors and records: the id, but for what is mounted
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc
	asIs   bool // names are qualified already: see MountOptions.AsIs
	// foreign is set for a mounted server, whose schemas are those of a stranger.
	foreign bool
	closed  bool // guarded by box.mu
}

// Provider returns the provider of an agent, which has none yet. The agent's id
// becomes part of names: letters, digits, "_", "-" and single dots between them.
func (b *Box) Provider(agentID string) (*Provider, error) {
	if len(agentID) > MaxName/2 || !agentPattern.MatchString(agentID) {
		return nil, errorf(CodeInvalid, agentID, "", "agent %q cannot offer tools: its id must be up to %d letters, digits, _, - and dots", agentID, MaxName/2)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.providers[agentID] != nil {
		return nil, errorf(CodeDuplicate, agentID, agentID, "agent %q has a provider already", agentID)
	}
	b.came++
	p := &Provider{box: b, id: agentID, number: b.came, source: agentID}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	b.providers[agentID] = p
	return p, nil
}

// ID returns the agent's id.
func (p *Provider) ID() string { return p.id }

func (p *Provider) owner() *Provider { return p }

// Close takes back everything that the agent offers and cancels the calls that
// run. It is safe to call more than once.
func (p *Provider) Close() {
	p.cancel(errorf(CodeClosed, "", p.id, "agent %q has left", p.id))
	_ = p.box.change(func() error {
		p.closed = true
		p.clear()
		if p.box.providers[p.id] == p {
			delete(p.box.providers, p.id)
		}
		return nil
	}) // it cannot fail
}

// clear takes back everything. box.mu is held.
func (p *Provider) clear() {
	maps.DeleteFunc(p.box.tools, func(_ string, t *tool) bool { return t.Provider == p })
	maps.DeleteFunc(p.box.resources, func(_ string, r *resource) bool { return r.Provider == p })
	maps.DeleteFunc(p.box.templates, func(_ string, t *template) bool { return t.Provider == p })
	maps.DeleteFunc(p.box.prompts, func(_ string, x *prompt) bool { return x.Provider == p })
}

// add enters something under a key that is free. duplicate is the code for one
// that is not.
func add[V any](p *Provider, m map[string]V, key string, v V, duplicate Code) error {
	return p.box.change(func() error { return enter(p, m, key, v, duplicate) })
}

// enter is add with box.mu held.
func enter[V any](p *Provider, m map[string]V, key string, v V, duplicate Code) error {
	if p.closed {
		return errorf(CodeClosed, key, p.id, "agent %q has left", p.id)
	}
	if _, taken := m[key]; taken {
		return errorf(duplicate, key, p.id, "%q is registered already", key)
	}
	if err := p.box.room(1, key, p.id); err != nil {
		return err
	}
	m[key] = v
	return nil
}

// qualify returns the name under which the agent's tool or prompt stands.
func (p *Provider) qualify(name string) (string, error) {
	qualified := p.id + "." + name
	if p.asIs {
		qualified = name
	}
	if len(qualified) > MaxName || !namePattern.MatchString(name) {
		return "", errorf(CodeInvalid, name, p.id, "the name %q must be letters, digits, _ and -, with single dots and slashes between them, and with the agent's id at most %d", name, MaxName)
	}
	return qualified, nil
}

// describe returns an error for descriptions and titles that are no text, too long, or
// not what a person sees of them.
func (p *Provider) describe(name string, texts ...string) error {
	for _, text := range texts {
		if len(text) > MaxDescription || !utf8.ValidString(text) || !visibleText(text) {
			return errorf(CodeInvalid, name, p.id, "the description of %q must be UTF-8 of at most %d bytes, without characters that cannot be seen", name, MaxDescription)
		}
	}
	return nil
}
