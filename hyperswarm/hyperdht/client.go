package hyperdht

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/identity"
)

// walk runs a query. It need not wait until the node has joined the DHT: a walk also starts at the bootstrap nodes.
func (n *Node) walk(ctx context.Context, w dhtrpc.Walk) ([]*dhtrpc.Reply, error) {
	nodes, err := n.rpc.Walk(ctx, w)
	switch {
	case err == nil:
		return nodes, nil
	case n.ctx.Err() != nil:
		return nodes, errClosed
	case ctx.Err() != nil:
		return nodes, ctx.Err()
	}
	return nodes, &Error{Code: CodeNoNodes, Message: "the DHT does not answer: check the bootstrap nodes and that the firewall allows UDP", Err: err}
}

// Lookup queries the peers of a topic and calls found with each until the nodes closest to the topic have
// answered or found returns false. Nodes may invent peers: only a handshake proves one. A persistent node
// also queries its own store: in a network with a single hub no other node stores anything.
func (n *Node) Lookup(ctx context.Context, topic [32]byte, found func(Peer) bool) error {
	_, _, err := n.lookup(ctx, topic, n.Key(), found)
	return err
}

// lookup also returns the nodes that listed key.
func (n *Node) lookup(ctx context.Context, topic [32]byte, key identity.PublicKey, found func(Peer) bool) (nodes, listed []*dhtrpc.Reply, err error) {
	seen := make(map[identity.PublicKey]bool)
	if n.rpc.Persistent() {
		for _, p := range n.store.lookup(topic) {
			seen[p.Key] = true
			if found != nil && !found(p) {
				return nil, nil, nil
			}
		}
	}
	nodes, err = n.walk(ctx, dhtrpc.Walk{Target: topic, Command: cmdLookup, Each: func(r *dhtrpc.Reply) bool {
		all, err := decode[peers](r.Value)
		if err != nil {
			return true
		}
		for _, p := range *all {
			if p.Key == key && r.ID != nil {
				listed = append(listed, r)
			}
			if seen[p.Key] {
				continue
			}
			seen[p.Key] = true
			p.Relays = usable(p.Relays, r.From)
			if found != nil && !found(p) {
				return false
			}
		}
		return true
	}})
	return nodes, listed, err
}

// Announce makes a pair findable under a topic, with nodes that forward handshakes to it (see
// [Listener.Relays]). It calls found, if not nil, with the peers already announced. The announcement
// expires after about twenty minutes: repeat it.
func (n *Node) Announce(ctx context.Context, topic [32]byte, pair *identity.Pair, relays []netip.AddrPort, found func(Peer) bool) error {
	nodes, listed, err := n.lookup(ctx, topic, pair.Public(), found)
	if err != nil {
		return err
	}
	// Nodes of the npm package keep an existing announcement even when the relays changed.
	n.announceAt(ctx, cmdUnannounce, topic, pair, nil, listed)
	done := len(n.announceAt(ctx, cmdAnnounce, topic, pair, relays, nodes))
	if n.rpc.Persistent() && n.store.announce(topic, Peer{Key: pair.Public(), Relays: relays[:min(len(relays), maxRelays)]}, netip.Addr{}) {
		done++
	}
	return committed(done, nil)
}

// Unannounce withdraws what Announce did.
func (n *Node) Unannounce(ctx context.Context, topic [32]byte, pair *identity.Pair) error {
	n.store.unannounce(topic, pair.Public())
	nodes, _, err := n.lookup(ctx, topic, pair.Public(), nil)
	if err != nil {
		return err
	}
	n.announceAt(ctx, cmdUnannounce, topic, pair, nil, nodes)
	return nil
}

func (n *Node) announceAt(ctx context.Context, command uint64, target dhtrpc.ID, pair *identity.Pair, relays []netip.AddrPort, nodes []*dhtrpc.Reply) []*dhtrpc.Reply {
	space := identity.Announce
	if command == cmdUnannounce {
		space = identity.Unannounce
	}
	done, _ := n.rpc.Commit(ctx, dhtrpc.Call{Command: command, Target: &target}, nodes, func(r *dhtrpc.Reply) []byte {
		a := announcement{peer: Peer{Key: pair.Public(), Relays: relays}}
		a.signature = pair.Sign(a.signable(space, target, *r.ID, *r.Token))
		return encode(&a)
	})
	return done
}

// committed converts the outcome of storing something to an error.
func committed(done int, refused []uint64) error {
	switch {
	case done > 0:
		return nil
	case slices.Contains(refused, errorSeqTooLow):
		return &Error{Code: CodeStale, Message: "a later version of the record is stored"}
	case slices.Contains(refused, errorSeqReused):
		return &Error{Code: CodeExists, Message: "another value is stored under this version of the record"}
	}
	return &Error{Code: CodeNoNodes, Message: "no node of the DHT has stored the record"}
}

// FindPeer returns the record of a peer that listens on a key.
func (n *Node) FindPeer(ctx context.Context, key identity.PublicKey) (Peer, error) {
	target := identity.Hash(key[:])
	if p, ok := n.peer(target); ok {
		return p, nil
	}
	var found *Peer
	_, err := n.walk(ctx, dhtrpc.Walk{Target: target, Command: cmdFindPeer, Each: func(r *dhtrpc.Reply) bool {
		p, err := decode[Peer](r.Value)
		if err != nil || p.Key != key {
			return true
		}
		found = p
		return false
	}})
	switch {
	case found != nil:
		return *found, nil
	case err != nil:
		return Peer{}, err
	}
	return Peer{}, peerError(CodePeerNotFound, key, "is not announced", nil)
}

// Record is a mutable record.
type Record struct {
	Value []byte
	Seq   uint64
}

// PutMutable stores a value of at most 900 bytes under the pair's key. Seq is its version: nodes keep the
// highest, and answer CodeStale or CodeExists to others.
func (n *Node) PutMutable(ctx context.Context, pair *identity.Pair, value []byte, seq uint64) error {
	if err := checkSize(value); err != nil {
		return err
	}
	if seq > dhtrpc.MaxUint {
		return &Error{Code: CodeInvalid, Message: "a record's version is at most 2^53-1"}
	}
	public := pair.Public()
	target := identity.Hash(public[:])
	m := mutable{seq: seq, value: bytes.Clone(value)} // the caller may change its own
	m.signature = pair.Sign(m.signable())
	w := dhtrpc.Walk{Target: target, Command: cmdMutableGet, Value: []byte{0}}
	return n.put(ctx, w, cmdMutablePut, encode(&signedPut{public, m}), func() uint64 {
		code, _ := n.store.putMutable(target, m, netip.Addr{})
		return code
	})
}

// put stores a record at the nodes closest to a walk's target. A persistent node also stores it itself, by
// calling own, which returns the code of a refusal.
func (n *Node) put(ctx context.Context, w dhtrpc.Walk, command uint64, data []byte, own func() uint64) error {
	nodes, err := n.walk(ctx, w)
	if err != nil {
		return err
	}
	done, refused := n.rpc.Commit(ctx, dhtrpc.Call{Command: command, Target: &w.Target}, nodes, func(*dhtrpc.Reply) []byte { return data })
	stored := len(done)
	if n.rpc.Persistent() {
		if code := own(); code != 0 {
			refused = append(refused, code)
		} else {
			stored++
		}
	}
	return committed(stored, refused)
}

func checkSize(value []byte) error {
	if len(value) > maxRecordSize {
		return &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the record has %d bytes; at most %d fit a datagram", len(value), maxRecordSize)}
	}
	return nil
}

// GetMutable returns the latest version, at least least, of a key's record among the closest nodes. The
// signature has been checked.
func (n *Node) GetMutable(ctx context.Context, key identity.PublicKey, least uint64) (Record, error) {
	var best *mutable
	target := identity.Hash(key[:])
	if m, ok := n.store.getMutable(target); ok && m.seq >= least {
		best = &m
	}
	_, err := n.walk(ctx, dhtrpc.Walk{
		Target: target, Command: cmdMutableGet, Value: dhtrpc.AppendUint(nil, least),
		Each: func(r *dhtrpc.Reply) bool {
			m, err := decode[mutable](r.Value)
			if err == nil && m.seq >= least && (best == nil || m.seq > best.seq) && identity.Verify(key, m.signable(), m.signature) {
				best = m
			}
			return true
		},
	})
	switch {
	case best != nil:
		return Record{bytes.Clone(best.value), best.seq}, nil
	case err != nil:
		return Record{}, err
	}
	return Record{}, &Error{Code: CodeNotFound, Message: "no node has a record of this key"}
}

// PutImmutable stores a value of at most 900 bytes under its hash and returns the hash.
func (n *Node) PutImmutable(ctx context.Context, value []byte) ([32]byte, error) {
	target := identity.Hash(value)
	if err := checkSize(value); err != nil {
		return target, err
	}
	if len(value) == 0 {
		return target, &Error{Code: CodeInvalid, Message: "an empty record cannot be stored"}
	}
	w := dhtrpc.Walk{Target: target, Command: cmdImmutableGet}
	return target, n.put(ctx, w, cmdImmutablePut, value, func() uint64 {
		n.store.putImmutable(target, bytes.Clone(value), netip.Addr{})
		return 0
	})
}

// GetImmutable returns the value with a hash.
func (n *Node) GetImmutable(ctx context.Context, hash [32]byte) ([]byte, error) {
	if value, ok := n.store.getImmutable(hash); ok {
		return bytes.Clone(value), nil
	}
	var value []byte
	_, err := n.walk(ctx, dhtrpc.Walk{Target: hash, Command: cmdImmutableGet, Each: func(r *dhtrpc.Reply) bool {
		if r.Value == nil || identity.Hash(r.Value) != hash {
			return true
		}
		value = bytes.Clone(r.Value)
		return false
	}})
	switch {
	case value != nil:
		return value, nil
	case err != nil:
		return nil, err
	}
	return nil, &Error{Code: CodeNotFound, Message: "no node has a record with this hash"}
}
