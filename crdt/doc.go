// Package crdt is a document that many edit at once, each on a copy of their
// own, and that comes out the same everywhere: whatever the order in which their
// updates arrive, however often, and whoever was away meanwhile (requirement 9).
//
// A [Doc] has named roots, each a [Map], an [Array] or a [Text], and shared types inside them.
// Updates, state vectors and snapshots are those of Yjs, version 1, byte for
// byte: a browser with stock yjs edits along.
//
//	d := crdt.New(crdt.Options{})
//	update, err := d.Transact(nil, func() error {
//		return d.Map("plan").Set("status", "open")
//	})
//	… send update to the others, who call Apply with it
//
// # How it works
//
// Each unit of content has an id of a client and a clock. An item says after
// and before which unit it was written; what several put at the same place is
// ordered by their client ids (see scan). Deleted items stay, without content, as
// marks of their place. Of the values that a key was given at once, the one of the highest
// client id stays: ids are random, so the winner is too, and nobody should
// read a meaning into it.
//
// # Concurrency
//
// A Doc and all that comes from it belong to one goroutine at a time; nothing in this package
// blocks, starts goroutines or looks at a clock. Package replica has an owner for
// it, and the exchange with others.
package crdt

import (
	"crypto/rand"
	"encoding/binary"
)

// Options set up a Doc.
type Options struct {
	// Client is the id under which this replica writes; 0 draws one at random. Two
	// replicas that write under one id diverge for ever, so draw one for each start of
	// each process, and never go on with the id of an earlier one.
	Client uint64
	// Limits that [Doc.Admit] and the parking of structs keep to; nil for LiveLimits.
	Limits *Limits
}

// Doc is one replica of a document.
type Doc struct {
	id      uint64
	limits  Limits
	clients map[uint64]*client
	recent  *client // that was looked up last
	roots   map[string]*node

	items  int    // structs in the store
	bytes  int    // content in the store
	step   uint64 // steps of scans so far
	budget uint64 // at which scans end early; 0 for never

	parked    parkedSizes
	needsSync bool
	updates   uint64 // that were applied

	tx        transaction
	observers observers
	undo      []*UndoManager
	successor *Succession // that carries the open transaction over
	notifying bool

	slab []item
	work []*client
}

// New returns an empty document.
func New(o Options) *Doc {
	d := &Doc{id: o.Client, limits: LiveLimits(), clients: make(map[uint64]*client), roots: make(map[string]*node)}
	if o.Limits != nil {
		d.limits = *o.Limits
	}
	if d.id == 0 {
		d.drawClient()
	}
	return d
}

// drawClient takes a new random id of 32 bits, as JavaScript's are, that the document does not know.
func (d *Doc) drawClient() {
	for {
		var b [4]byte
		rand.Read(b[:]) // never fails
		id := uint64(binary.BigEndian.Uint32(b[:]))
		if _, known := d.clients[id]; id != 0 && !known {
			d.id = id
			return
		}
	}
}

// Client returns the id under which this replica writes. It changes only if
// somebody else writes under it (see [Result]).
func (d *Doc) Client() uint64 { return d.id }

// Renew draws a new client id, for what this replica writes from now on.
func (d *Doc) Renew() { d.drawClient() }

// Items returns the number of items, tombstones included.
func (d *Doc) Items() int { return d.items }

// Bytes returns the size of the content.
func (d *Doc) Bytes() int { return d.bytes }

// ScanSteps returns how many items were passed so far to find the places of others:
// what concurrent edits of one place cost.
func (d *Doc) ScanSteps() uint64 { return d.step }

// Roots returns the names of the roots in use, in order.
func (d *Doc) Roots() []string { return sortedKeys(d.roots) }

func (d *Doc) root(name string) *node {
	n := d.roots[name]
	if n == nil {
		n = &node{name: name, ref: typeRoot, cast: typeRoot, doc: d}
		d.roots[name] = n
	}
	return n
}

// Result tells what an update did.
type Result struct {
	// Update has what was new to this document, in one update; nil if nothing was.
	Update []byte
	// Parked says that something waits for what is not here: see [Doc.Pending].
	Parked bool
	// ClientTaken says that somebody wrote under this replica's client id. It now
	// has another; what it wrote and had not sent may be lost.
	ClientTaken bool
}

// Apply reads an update and applies it. It may come in any order and any number
// of times. Errors are those of [ParseUpdate]; the document is then as before. Apply
// trusts the update to fit the document: call [Doc.Admit] first with one from a
// peer.
func (d *Doc) Apply(update []byte, origin any) (Result, error) {
	u, err := ParseUpdate(update, StateLimits())
	if err != nil {
		return Result{}, err
	}
	return d.ApplyUpdate(u, origin)
}

// ApplyUpdate applies an update that was read with [ParseUpdate], once. It fails
// only when it is called by an observer, inside a transaction or with an update
// that was used.
func (d *Doc) ApplyUpdate(u *Update, origin any) (Result, error) {
	if d.tx.open || d.notifying || u == nil || u.used {
		return Result{}, errorf(CodeInvalid, nil, "an update cannot be nil, nor applied twice, nor inside a transaction or an observer")
	}
	u.used = true
	own := d.state(d.id)
	d.updates++
	d.begin(origin, false)
	// If all of it is new it can be passed on as it is.
	allNew := d.parked == parkedSizes{} && (len(d.clients) == 0 || len(u.deletes) == 0)
	for _, b := range u.blocks {
		d.applyBlock(b, d.updates)
	}
	d.applyParkedDeletes()
	d.applyDeletes(u.deletes)
	if d.parked.structs > d.limits.ParkedStructs || d.parked.bytes > d.limits.ParkedBytes {
		d.dropNewest(u, d.updates)
	}
	res := Result{Parked: d.parked != parkedSizes{} || d.needsSync}
	if d.state(d.id) != own {
		d.drawClient()
		res.ClientTaken = true
	}
	if allNew && !res.Parked && d.tx.whole == u.count {
		d.tx.update = u.data
	}
	res.Update = d.commit()
	return res, nil
}
