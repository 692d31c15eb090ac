package toolbox

import (
	"context"
	"maps"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/text"
)

var (
	agentPattern = text.Pattern(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	namePattern  = text.Pattern(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*$`)
)

// Provider has the tools, resources and prompts of one agent. It is safe for concurrent use.
type Provider struct {
	box    *Box
	id     string
	number int             // in order of creation
	source string          // the agent in errors and records: id, except for a mounted server
	ctx    context.Context // of the calls
	cancel context.CancelCauseFunc
	asIs   bool // names are qualified already, see MountOptions.AsIs
	// foreign is set for a mounted server, whose schemas are not trusted.
	foreign bool
	closed  bool // guarded by box.mu
}

// Provider creates the provider of an agent. The agent's id becomes part of names:
// letters, digits, "_", "-" and single dots between them.
func (b *Box) Provider(agentID string) (*Provider, error) {
	if len(agentID) > MaxName/2 || !agentPattern().MatchString(agentID) {
		return nil, errorf(CodeInvalid, agentID, "", "agent %q cannot offer tools: its id must be up to %d letters, digits, _, - and dots", agentID, MaxName/2)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.providers[agentID] != nil {
		return nil, errorf(CodeDuplicate, agentID, agentID, "agent %q already has a provider", agentID)
	}
	b.created++
	p := &Provider{box: b, id: agentID, number: b.created, source: agentID}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	b.providers[agentID] = p
	return p, nil
}

// ID returns the agent's id.
func (p *Provider) ID() string { return p.id }

// Close removes everything that the agent offers and cancels running calls. It is safe to call more than once.
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

// clear removes and returns all offers of the provider; box.mu is held.
func (p *Provider) clear() offers {
	was := newOffers()
	for k, all := range p.box.offers {
		maps.DeleteFunc(all, func(key string, o offer) bool {
			if o.base().Provider != p {
				return false
			}
			was[k][key] = o
			return true
		})
	}
	return was
}

// add adds an offer, or returns the error of making it.
func (p *Provider) add(o offer, err error) error {
	if err != nil {
		return err
	}
	return p.box.change(func() error { return p.enter(o) })
}

// enter is add with box.mu held.
func (p *Provider) enter(o offer) error {
	e, entries := o.base(), 0
	for _, all := range p.box.offers {
		entries += len(all)
	}
	all, most := p.box.offers[e.kind], p.box.o.MaxEntries
	switch _, taken := all[e.key]; {
	case p.closed:
		return errorf(CodeClosed, e.key, p.id, "agent %q has left", p.id)
	case taken && e.kind == kindTool:
		return errorf(CodeDuplicateTool, e.key, p.id, "%q is registered already", e.key)
	case taken:
		return errorf(CodeDuplicate, e.key, p.id, "%q is registered already", e.key)
	case entries >= most:
		return errorf(CodeFull, e.key, p.id, "the toolbox is full: it holds at most %d tools, resources and prompts", most)
	}
	all[e.key] = o
	return nil
}

// incomplete returns the error for a nil argument.
func (p *Provider) incomplete(what, needs string) error {
	return errorf(CodeInvalid, "", p.id, "%s needs a description and a %s, and one is nil", what, needs)
}

// qualify returns the qualified name of the agent's tool or prompt.
func (p *Provider) qualify(name string) (string, error) {
	qualified := p.id + "." + name
	if p.asIs {
		qualified = name
	}
	if len(qualified) > MaxName || !namePattern().MatchString(name) {
		return "", errorf(CodeInvalid, name, p.id, "the name %q must be letters, digits, _ and -, with single dots and slashes between them, and with the agent's id at most %d", name, MaxName)
	}
	return qualified, nil
}

// describe returns an error for a description or title that is not UTF-8, too long, or has invisible characters.
func (p *Provider) describe(name string, texts ...string) error {
	for _, text := range texts {
		if len(text) > MaxDescription || !utf8.ValidString(text) || !visibleText(text) {
			return errorf(CodeInvalid, name, p.id, "the description of %q must be UTF-8 of at most %d bytes, without invisible characters", name, MaxDescription)
		}
	}
	return nil
}

// unseen are invisible characters that a model or a terminal interprets: those that
// change the direction of text, and the tags, which repeat ASCII.
var unseen = &unicode.RangeTable{
	R16: []unicode.Range16{{Lo: 0x202a, Hi: 0x202e, Stride: 1}, {Lo: 0x2066, Hi: 0x2069, Stride: 1}},
	R32: []unicode.Range32{{Lo: 0xe0000, Hi: 0xe007f, Stride: 1}},
}

// visibleText reports whether a text has no invisible or control characters, apart from tabs and line breaks.
func visibleText(text string) bool {
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' || unicode.Is(unseen, r) {
			return false
		}
	}
	return true
}
