package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/documents"
)

// replica is this program's copy of a document. Edits are made in it at once, and merged with those of all others when the hub
// is there: nothing is lost while it is away, and nothing is made twice if an answer is lost.
type replica struct {
	name  string
	doc   *crdt.Doc
	undo  *crdt.UndoManager
	epoch uint64
	hub   crdt.StateVector  // what the hub has; nil before the first answer
	known map[string]string // the texts as the hub has them
	keep  map[string]string // texts of a copy that the hub refused; they are edits of the next one

	edits   int // made here
	saved   int // of those, the hub has
	sending bool
	again   bool // something has changed since it was sent
	problem string
	changed func(crdt.Change) // what others have changed; nothing if the copy is new
}

func newReplica(name string, changed func(crdt.Change)) *replica {
	c := &replica{name: name, changed: changed}
	c.renew()
	return c
}

// renew begins an empty copy.
func (c *replica) renew() {
	c.doc, c.hub, c.epoch = crdt.New(crdt.Options{}), nil, 0
	c.undo = c.doc.NewUndo(func(origin any) bool { return origin == typed })
	c.doc.Observe(func(change crdt.Change) {
		if change.Origin != typed && c.changed != nil && c.hub != nil {
			c.changed(change)
		}
	})
}

// typed is the origin of what the user writes.
const typed = "typed"

// texts are the names of the roots that are texts.
func (c *replica) texts() []string {
	var names []string
	for _, n := range c.doc.Roots() {
		if c.doc.Shape(n) == "text" {
			names = append(names, n)
		}
	}
	return names
}

// read returns a text; what is embedded in it is one sign, as it is one unit.
func (c *replica) read(root string) string {
	var b strings.Builder
	for _, r := range c.doc.Text(root).Runs() {
		if s, ok := r.Insert.(string); ok {
			b.WriteString(s)
		} else {
			b.WriteRune(utf8.RuneError)
		}
	}
	return b.String()
}

// splice replaces count units at an index of a text.
func (c *replica) splice(root string, index, count int, text string) error {
	_, err := c.doc.Transact(typed, func() error {
		t := c.doc.Text(root)
		if count > 0 {
			if err := t.Delete(index, count); err != nil {
				return err
			}
		}
		if text == "" {
			return nil
		}
		return t.Insert(index, text)
	})
	if err == nil {
		c.edits++
	}
	return err
}

// unsaved reports whether the hub may lack an edit.
func (c *replica) unsaved() bool { return c.edits > c.saved || c.keep != nil }

// restMsg is the hub's answer to a copy.
type restMsg struct {
	of    *replica
	edits int
	rest  *documents.Rest
	err   error
}

// sync merges the copy with the hub's document.
func (m *model) sync(c *replica) tea.Cmd {
	if c.sending {
		c.again = true
		return nil
	}
	c.sending, c.again = true, false
	has, edits := documents.Copy{Epoch: c.epoch}, c.edits
	if c.hub != nil {
		has.Vector = c.doc.StateVector().Encode()
		if c.unsaved() {
			has.Update = c.doc.EncodeSince(c.hub)
		}
	}
	return func() tea.Msg {
		r := restMsg{of: c, edits: edits}
		r.err = m.link.call(func(ctx context.Context, h Hub) (err error) {
			r.rest, err = h.SyncDocument(ctx, c.name, has)
			return err
		})
		return r
	}
}

// synced handles the hub's answer. What failed is sent again when the hub is back, or with the next idleMsg.
func (m *model) synced(r restMsg) tea.Cmd {
	c := r.of
	c.sending = false
	if r.err == nil {
		r.err = c.adopt(r)
	}
	switch {
	case r.err == nil:
		c.problem = ""
	case refused(r.err) && c.hub != nil:
		c.restart()
		c.again = true
	case m.up:
		c.problem = clean(r.err.Error())
	}
	if c.again || r.err == nil && c.edits > c.saved {
		return m.sync(c)
	}
	if m.editor == nil || m.editor.replica != c {
		m.forget(c)
	}
	return nil
}

func (c *replica) adopt(r restMsg) error {
	vector, err := crdt.DecodeStateVector(r.rest.Vector, crdt.StateLimits().Vector)
	if err != nil {
		return err
	}
	first := c.hub == nil
	if _, err := c.doc.Apply(r.rest.Update, nil); err != nil {
		return err
	}
	c.hub, c.epoch, c.saved = vector, r.rest.Epoch, max(c.saved, r.edits)
	if first {
		c.repeat()
	}
	if first && c.changed != nil {
		c.changed(crdt.Change{})
	}
	c.known = make(map[string]string)
	for _, n := range c.texts() {
		c.known[n] = c.read(n)
	}
	return nil
}

// restart begins a new copy of a document that has begun anew at the hub; what the hub lacked is repeated in it.
func (c *replica) restart() {
	if c.keep == nil {
		c.keep = make(map[string]string)
		for _, n := range c.texts() {
			if now := c.read(n); now != c.known[n] {
				c.keep[n] = now
			}
		}
	}
	c.undo.Close()
	c.renew()
}

// repeat makes the edits of the former copy in this one.
func (c *replica) repeat() {
	for n, mine := range c.keep {
		base, theirs := c.known[n], c.read(n)
		for _, s := range difference(base, mine).rebased(difference(base, theirs)) {
			if c.splice(n, crdt.Units(theirs[:s.at]), crdt.Units(theirs[s.at:s.at+s.count]), s.text) == nil {
				theirs = theirs[:s.at] + s.text + theirs[s.at+s.count:]
			}
		}
	}
	c.keep = nil
}

// refused reports whether the hub takes no more edits of a copy.
func refused(err error) bool {
	var rpc *jsonrpc.Error
	var details jsonrpc.Details
	if !errors.As(err, &rpc) || json.Unmarshal(rpc.Data, &details) != nil {
		return false
	}
	return details.Code == "DOCUMENT_CHANGED" || details.Code == "INVALID_PARAMS"
}

// splice replaces count bytes at a place of a text.
type splice struct {
	at, count int
	text      string
}

// difference returns the one splice that makes b of a.
func difference(a, b string) splice {
	at, end, most := 0, 0, min(len(a), len(b))
	for at < most && a[at] == b[at] {
		at++
	}
	for at > 0 && (at < len(a) && !utf8.RuneStart(a[at]) || at < len(b) && !utf8.RuneStart(b[at])) {
		at--
	}
	for end < most-at && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	for end > 0 && !utf8.RuneStart(a[len(a)-end]) {
		end--
	}
	return splice{at, len(a) - at - end, b[at : len(b)-end]}
}

// rebased returns the splices that do the same after another change of the same text; what that has written is kept.
func (s splice) rebased(other splice) []splice {
	end, otherEnd, delta := s.at+s.count, other.at+other.count, len(other.text)-other.count
	var all []splice
	if from := max(s.at, otherEnd); from < end {
		all = append(all, splice{from + delta, end - from, ""})
	}
	at := other.at + len(other.text)
	switch {
	case s.at <= other.at:
		at = s.at
	case s.at >= otherEnd:
		at = s.at + delta
	}
	if count := max(0, min(end, other.at)-s.at); count > 0 || s.text != "" {
		all = append(all, splice{at, count, s.text})
	}
	return all
}
