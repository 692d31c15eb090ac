package crdt

import (
	"bytes"
	"slices"
)

// Sender describes the sender of an update, for [Doc.Admit].
type Sender struct {
	// Writes reports whether the sender may write under a client id: an id of its current or an earlier
	// session. Nil allows all.
	Writes func(client uint64) bool
	// Vector is the sender's state before the update, if known. Admit then checks that the update could
	// have been written in that state.
	Vector StateVector
	// Whole means that the update answers a state vector: it may contain known structs and gaps.
	Whole bool
}

// Admit reports, without changing anything, whether an update may be applied: whether it fits the document
// and stays within the limits. All replicas must apply an update that one of them has admitted. Errors have
// CodeLimit, CodeRefused, CodeEquivocation or, for an update that was already applied, CodeInvalid.
//
// After a refusal later updates under the same client id cannot be applied, since units are numbered
// without gaps: the sender must start a new session with another id.
func (d *Doc) Admit(u *Update, from Sender) error {
	if u == nil || u.used {
		return errorf(CodeInvalid, nil, "an update must be admitted before it is applied")
	}
	a := admission{d: d, u: u, from: from, index: make(map[uint64][]*item, len(u.blocks))}
	for _, b := range u.blocks {
		a.index[b.client] = append(a.index[b.client], b.items...)
	}
	if err := a.sizes(); err != nil {
		return err
	}
	for _, b := range u.blocks {
		if err := a.block(b); err != nil {
			return err
		}
	}
	return a.cost()
}

type admission struct {
	d     *Doc
	u     *Update
	from  Sender
	index map[uint64][]*item // the update's structs by client
	depth map[*item]int      // of the type that contains an item of the update; see depthOf
	steps uint64             // to integrate the update's items
	fresh int                // structs that are new to the document
}

func (a *admission) sizes() error {
	d, u := a.d, a.u
	clients := len(d.clients)
	for client := range a.index {
		if d.clients[client] == nil {
			clients++
		}
	}
	switch {
	case clients > d.limits.DocClients:
		return errorf(CodeLimit, nil, "the document would have %d client ids; the maximum is %d", clients, d.limits.DocClients)
	case d.items+u.count > d.limits.DocItems:
		return errorf(CodeLimit, nil, "the document would have more than %d items", d.limits.DocItems)
	case d.bytes+u.size > d.limits.DocBytes:
		return errorf(CodeLimit, nil, "the document would have more than %d bytes of content", d.limits.DocBytes)
	}
	return nil
}

func (a *admission) block(b block) error {
	state := a.d.state(b.client)
	for _, it := range b.items {
		if it.end() <= state {
			if err := a.known(it); err != nil {
				return err
			}
			continue
		}
		if a.from.Writes != nil && !a.from.Writes(b.client) {
			return errorf(CodeRefused, nil, "the sender writes under client id %d, which is not its own", b.client)
		}
		if it.id.Clock < state {
			if !a.from.Whole {
				// The sender must have seen its own units up to the state.
				if err := a.known(it); err != nil {
					return err
				}
			}
		}
		a.fresh++
		if err := a.item(it); err != nil {
			return err
		}
	}
	return nil
}

// known checks that a struct which is already stored is the same here. Otherwise two writers use one client
// id, or one writer changes its history. Deleted content cannot be compared.
func (a *admission) known(it *item) error {
	end := min(it.end(), a.d.state(it.id.Client))
	for clock := it.id.Clock; clock < end; {
		here := a.d.get(ID{it.id.Client, clock})
		stop := min(end, here.end())
		if !it.same(here, clock, stop) {
			return a.equivocation(it)
		}
		clock = stop
	}
	return nil
}

// same reports whether two structs, possibly split differently, agree in the units from one clock to another.
func (it *item) same(here *item, from, to uint64) bool {
	if here.deleted() || it.deleted() {
		return true
	}
	if here.kind != it.kind || it.has(flagRight) != here.has(flagRight) || it.rightOrigin != here.rightOrigin {
		return false
	}
	before := ID{it.id.Client, from - 1} // the origin of the right half of a split struct
	switch {
	case it.id == here.id:
		if it.has(flagOrigin) != here.has(flagOrigin) || it.origin != here.origin {
			return false
		}
	case it.id.Clock == from && (!it.has(flagOrigin) || it.origin != before),
		here.id.Clock == from && (!here.has(flagOrigin) || here.origin != before):
		return false
	}
	if it.kind == kindType {
		return it.node.ref == here.node.ref
	}
	return sameUnits(it.content(from, to), here.content(from, to))
}

// content returns the content from one clock to another: UTF-8 of a string, encoded elements of a list.
func (it *item) content(from, to uint64) []byte {
	i, j := uint32(from-it.id.Clock), uint32(to-it.id.Clock)
	switch it.kind {
	case kindString:
		s := it.data
		if j < it.length {
			s, _ = cutString(slices.Clone(s), j, it.has(flagASCII))
		}
		if i > 0 {
			_, s = cutString(slices.Clone(s), i, it.has(flagASCII))
		}
		return s
	case kindAny, kindJSON:
		return it.data[it.offset(i):it.offset(j)]
	default:
		return it.data
	}
}

// sameUnits compares content. A replica that has split a surrogate pair has U+FFFD for its halves, which
// counts as equal.
func sameUnits(a, b []byte) bool {
	return bytes.Equal(a, b) || (bytes.Contains(a, []byte(replacement)) || bytes.Contains(b, []byte(replacement))) && unitsOf(a) == unitsOf(b)
}

func (a *admission) equivocation(it *item) error {
	return errorf(CodeEquivocation, nil, "the unit %s already exists with different content", it.id)
}

// item checks one struct that is new.
func (a *admission) item(it *item) error {
	if it.kind == kindGC {
		return nil
	}
	if it.kind == kindType {
		depth, known := a.depthOf(it)
		if known && depth+1 > a.d.limits.Depth {
			return errorf(CodeLimit, nil, "shared types would be nested more than %d deep", a.d.limits.Depth)
		}
	}
	if it.has(flagOrigin) && it.has(flagRight) {
		if err := a.ordered(it); err != nil {
			return err
		}
	}
	return a.adjacent(it)
}

// ordered checks that origin and right origin are in one list, in this order. Otherwise replicas could end
// with different orders.
func (a *admission) ordered(it *item) error {
	if it.origin == it.rightOrigin {
		return a.disorder(it)
	}
	if !a.d.knows(it.origin) || !a.d.knows(it.rightOrigin) {
		return nil // part of this update, or unknown
	}
	left, right := a.d.get(it.origin), a.d.get(it.rightOrigin)
	if left.kind == kindGC || right.kind == kindGC {
		return nil
	}
	if left.parent != right.parent || left.has(flagKeyed) != right.has(flagKeyed) || left.key != right.key {
		return errorf(CodeRefused, nil, "the unit %s claims to be between %s and %s, which are not in the same list", it.id, it.origin, it.rightOrigin)
	}
	if left == right {
		if it.origin.Clock > it.rightOrigin.Clock {
			return a.disorder(it)
		}
		return nil
	}
	if left.has(flagKeyed) {
		return a.chained(it, left, right)
	}
	i, _ := left.before()
	j, _ := right.before()
	if i > j {
		return a.disorder(it)
	}
	a.steps += uint64(j - i)
	return nil
}

func (a *admission) disorder(it *item) error {
	return errorf(CodeRefused, nil, "the unit %s claims to be after %s and before %s, but they are in the opposite order", it.id, it.origin, it.rightOrigin)
}

// chainSteps bounds the search in a key's history.
const chainSteps = 4096

func (a *admission) chained(it, left, right *item) error {
	for o, n := left.right, 0; o != nil && n < chainSteps; o, n = o.right, n+1 {
		if o == right {
			return nil
		}
	}
	return a.disorder(it)
}

// adjacent checks, if the sender's vector is known, that the sender knew no unit between the item's
// neighbours, or between a neighbour and the end of the list.
func (a *admission) adjacent(it *item) error {
	if a.from.Vector == nil {
		return nil
	}
	o, right, ok := a.neighbours(it)
	if !ok {
		return nil
	}
	for ; o != nil && o != right; o = o.right {
		if a.steps++; a.steps > a.d.limits.IntegrationCost {
			return a.tooCostly()
		}
		if o.id.Clock < a.from.Vector[o.id.Client] {
			return errorf(CodeRefused, nil, "the unit %s was not written at its place: its writer knew %s, which is between its neighbours", it.id, o.id)
		}
	}
	return nil
}

// neighbours returns the first item between an item's neighbours as its writer saw them, and the right neighbour,
// nil for the end. It reports false if they are unknown or inside one item, with nothing between them.
func (a *admission) neighbours(it *item) (first, right *item, ok bool) {
	if it.has(flagOrigin) && !a.d.knows(it.origin) || it.has(flagRight) && !a.d.knows(it.rightOrigin) {
		return nil, nil, false
	}
	if it.has(flagRight) {
		right = a.d.get(it.rightOrigin)
	}
	if it.has(flagOrigin) {
		left := a.d.get(it.origin)
		if left.kind == kindGC || left == right || it.origin != left.lastID() {
			return nil, nil, false
		}
		return left.right, right, true
	}
	switch {
	case right != nil && right.kind != kindGC:
		return right.parent.first(right), right, true
	case right == nil && it.parent.ref == typeRoot && a.d.roots[it.parent.name] != nil:
		return a.d.roots[it.parent.name].first(it), nil, true
	}
	return nil, nil, false
}

// depthOf returns the depth of the type that will contain an item of the update, and false if it depends on
// unknown units.
func (a *admission) depthOf(it *item) (int, bool) {
	if a.depth == nil {
		a.depth = make(map[*item]int)
	}
	// Follow the references to a known unit, then set the depth of all items passed: an item has the depth
	// of its origin, and is one deeper than the item that holds its type.
	type step struct {
		it   *item
		more int
	}
	var way []step
	depth := 0
	for {
		if known, ok := a.depth[it]; ok {
			depth = known
			break
		}
		if len(way) > a.u.count {
			return 0, false // circular references
		}
		next, more := a.reference(it)
		way = append(way, step{it, more})
		if more < 0 {
			break // a root: depth 0
		}
		if a.d.knows(next) {
			here := a.d.get(next)
			if here.parent == nil {
				return 0, false
			}
			depth = here.parent.depth
			break
		}
		if it = a.find(next); it == nil {
			return 0, false
		}
	}
	for _, s := range slices.Backward(way) {
		depth += max(s.more, 0)
		a.depth[s.it] = depth
	}
	return depth, true
}

// reference returns the unit that determines an item's place, and how much deeper the item is; -1 if it is
// in a root.
func (a *admission) reference(it *item) (ID, int) {
	switch {
	case it.has(flagOrigin):
		return it.origin, 0
	case it.has(flagRight):
		return it.rightOrigin, 0
	case it.parent == nil || it.parent.ref == typeRoot:
		return ID{}, -1
	default:
		return it.parent.by, 1
	}
}

// find returns the update's struct that contains a unit, nil if there is none.
func (a *admission) find(id ID) *item {
	items := a.index[id.Client]
	i, found := slices.BinarySearchFunc(items, id.Clock, func(it *item, clock uint64) int {
		return compareRange(it.id.Clock, it.end(), clock)
	})
	if !found {
		return nil
	}
	return items[i]
}

// trialSize is the number of new structs from which the cost of integrating them is measured: fewer are
// cheap even if all are at one place.
const trialSize = 4000

// cost refuses an update that takes too many steps to integrate. A large one is tried on a copy of the document.
func (a *admission) cost() error {
	if a.steps > a.d.limits.IntegrationCost {
		return a.tooCostly()
	}
	if a.fresh < trialSize {
		return nil
	}
	trial := New(Options{Limits: &a.d.limits})
	if _, err := trial.Apply(a.d.encodeStore(nil), nil); err != nil {
		return err
	}
	copied, err := ParseUpdate(a.u.data, *a.u.limits)
	if err != nil {
		return err
	}
	copied.deletes = nil
	trial.budget = trial.step + a.d.limits.IntegrationCost
	if _, err := trial.ApplyUpdate(copied, nil); err != nil {
		return err
	}
	if trial.step > trial.budget {
		return a.tooCostly()
	}
	return nil
}

func (a *admission) tooCostly() error {
	return errorf(CodeLimit, nil, "integrating the update would take more than %d steps", a.d.limits.IntegrationCost)
}
