// Package crdt provides documents that several replicas edit concurrently. All replicas converge, whatever
// the order in which updates arrive and however often, also after a time offline.
//
// A [Doc] has named roots, each a [Map], an [Array] or a [Text], and shared types inside them. Updates,
// state vectors and snapshots are byte for byte those of Yjs, version 1, so browsers with stock yjs can
// edit the same document.
//
//	d := crdt.New(crdt.Options{})
//	update, err := d.Transact(nil, func() error {
//		return d.Map("plan").Set("status", "open")
//	})
//	… send update to the other replicas, which call Apply with it
//
// # How it works
//
// Each unit of content has an id of a client and a clock. An item names the units that were its left and right
// neighbours when it was written; items written concurrently at the same place are ordered by their client ids (see
// scan). Deleted items stay as tombstones without content. Of the values that a key was given concurrently, the one
// with the highest client id wins. Client ids are random, so the winner is arbitrary.
//
// # Concurrency
//
// A Doc and its shared types must be used by one goroutine at a time. Nothing in this package blocks,
// starts goroutines or reads a clock. Package replica owns a Doc and exchanges updates with others.
package crdt

import (
	"crypto/rand"
	"encoding/binary"
)

// Options configure a Doc.
type Options struct {
	// Client is the id under which this replica writes; 0 means a random one. Replicas that write under the
	// same id diverge for good, so use a new id at each start of a process.
	Client uint64
	// Limits bound what [Doc.Admit] accepts and how many structs are parked; nil means LiveLimits.
	Limits *Limits
	// Panicked is called with the panic of an observer, so that it ends neither the transaction nor the calls of
	// other observers. Nil: the panic continues, in the goroutine of Transact or Apply.
	Panicked func(p any)
}

// Doc is one replica of a document.
type Doc struct {
	id      uint64
	limits  Limits
	clients map[uint64]*client
	recent  *client // last looked up
	roots   map[string]*node

	items  int    // structs in the store
	bytes  int    // content in the store
	step   uint64 // steps of all scans
	budget uint64 // step after which scans end early; 0 for none

	parked    parkedSizes
	needsSync bool
	updates   uint64 // updates applied

	tx        transaction
	observers observers
	undo      []*UndoManager
	successor *Succession // receives the open transaction's changes
	notifying bool
	panicked  func(any) // Options.Panicked

	slab []item
	work []*client
}

// New returns an empty document.
func New(o Options) *Doc {
	d := &Doc{id: o.Client, panicked: o.Panicked, limits: LiveLimits(), clients: make(map[uint64]*client), roots: make(map[string]*node)}
	if o.Limits != nil {
		d.limits = *o.Limits
	}
	if d.id == 0 {
		d.drawClient()
	}
	return d
}

// drawClient chooses a random id of 32 bits, like those of Yjs, that the document does not know.
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

// Client returns the id under which this replica writes. It changes only if another replica writes under it
// (see [Result]), or in Renew.
func (d *Doc) Client() uint64 { return d.id }

// Renew chooses a new client id for later edits.
func (d *Doc) Renew() { d.drawClient() }

// Items returns the number of items, including tombstones.
func (d *Doc) Items() int { return d.items }

// Bytes returns the size of the content in bytes.
func (d *Doc) Bytes() int { return d.bytes }

// ScanSteps returns how many items scans have passed so far: the cost of concurrent edits at the same place.
func (d *Doc) ScanSteps() uint64 { return d.step }

// Roots returns the sorted names of the roots in use.
func (d *Doc) Roots() []string { return sortedKeys(d.roots) }

func (d *Doc) root(name string) *node {
	n := d.roots[name]
	if n == nil {
		n = &node{name: name, ref: typeRoot, cast: typeRoot, doc: d}
		d.roots[name] = n
	}
	return n
}

// rootAs returns a root that the application uses as a type.
func (d *Doc) rootAs(name string, as typeRef) *node {
	n := d.root(name)
	n.cast = as
	return n
}

// Result is the outcome of applying an update.
type Result struct {
	// Update has what was new to this document, as one update; nil if nothing was.
	Update []byte
	// Parked reports that part of the update waits for missing structs: see [Doc.Pending].
	Parked bool
	// ClientTaken reports that another replica wrote under this replica's client id. This one now has
	// another id; its unsent edits may be lost.
	ClientTaken bool
}

// Apply decodes an update and applies it. Updates may be applied in any order and any number of times.
// Errors are those of [ParseUpdate] and leave the document unchanged. Apply does not check that the update
// fits the document: call [Doc.Admit] first for updates of a peer.
func (d *Doc) Apply(update []byte, origin any) (Result, error) {
	u, err := ParseUpdate(update, StateLimits())
	if err != nil {
		return Result{}, err
	}
	return d.ApplyUpdate(u, origin)
}

// ApplyUpdate applies an update decoded with [ParseUpdate], once. It fails only if it is called by an
// observer, inside a transaction or with an update that was already applied.
func (d *Doc) ApplyUpdate(u *Update, origin any) (Result, error) {
	if d.tx.open || d.notifying || u == nil || u.used {
		return Result{}, errorf(CodeInvalid, nil, "an update must not be nil or applied twice, nor applied inside a transaction or an observer")
	}
	u.used = true
	own := d.state(d.id)
	d.updates++
	d.begin(origin, false)
	// An update that is new as a whole is passed on unchanged.
	allNew := d.parked == parkedSizes{} && (len(d.clients) == 0 || len(u.deletes) == 0)
	for _, b := range u.blocks {
		d.applyBlock(b, d.updates)
	}
	d.applyParkedDeletes()
	for _, id := range descending(u.deletes) {
		for _, r := range u.deletes[id] {
			d.deleteKnown(id, r)
		}
	}
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
