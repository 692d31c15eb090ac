package hyperdht

import (
	"net/netip"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/identity"
)

// The commands of HyperDHT.
const (
	cmdPeerHandshake = iota
	cmdPeerHolepunch
	cmdFindPeer
	cmdLookup
	cmdAnnounce
	cmdUnannounce
	cmdMutablePut
	cmdMutableGet
	cmdImmutablePut
	cmdImmutableGet
)

// Error codes of put replies.
const (
	errorSeqReused = 16
	errorSeqTooLow = 17
)

// Peer is an announced key with the nodes that forward handshakes to it.
type Peer struct {
	Key    identity.PublicKey
	Relays []netip.AddrPort
}

const (
	maxRelays     = 3   // of one peer
	maxPeers      = 20  // in one answer
	peerSize      = 33  // the least bytes of a peer
	maxRecordSize = 900 // bytes of a record's value
)

func appendPeer(b []byte, p *Peer) []byte {
	return dhtrpc.AppendAddrs(append(b, p.Key[:]...), p.Relays)
}

func readPeer(r *dhtrpc.Reader) Peer { return Peer{Key: r.Fixed32(), Relays: r.Addrs()} }

func parsePeer(data []byte) (Peer, error) {
	r := dhtrpc.NewReader(data)
	p := readPeer(r)
	return p, r.Err()
}

// appendPeers appends the answer to a lookup; the final 0 is the unused "bump" field.
func appendPeers(b []byte, all []Peer) []byte {
	b = dhtrpc.AppendUint(b, uint64(len(all)))
	for i := range all {
		b = appendPeer(b, &all[i])
	}
	return dhtrpc.AppendUint(b, 0)
}

func parsePeers(data []byte) ([]Peer, error) {
	r := dhtrpc.NewReader(data)
	n := r.Count(peerSize)
	var all []Peer
	for range min(n, maxPeers) {
		p := readPeer(r)
		p.Relays = p.Relays[:min(len(p.Relays), maxRelays)]
		all = append(all, p)
	}
	if r.Err() != nil {
		return nil, r.Err()
	}
	return all, nil
}

// The flags of an announcement.
const (
	announcePeer = 1 << iota
	announceRefresh
	announceSignature
	announceBump
)

// announcement adds a peer to a target, or removes it.
type announcement struct {
	peer      *Peer
	signature [64]byte
}

func (a *announcement) append(b []byte) []byte {
	b = dhtrpc.AppendUint(b, announcePeer|announceSignature)
	b = appendPeer(b, a.peer)
	return append(b, a.signature[:]...)
}

// parseAnnouncement decodes an announcement with a peer and a signature. Refreshes, which have neither, are
// not supported.
func parseAnnouncement(data []byte) (*announcement, error) {
	r := dhtrpc.NewReader(data)
	flags := r.Uint()
	if flags&announcePeer == 0 || flags&announceSignature == 0 || flags&announceRefresh != 0 {
		return nil, dhtrpc.ErrInvalid
	}
	p := readPeer(r)
	a := &announcement{peer: &p, signature: r.Fixed64()}
	if flags&announceBump != 0 {
		r.Uint()
	}
	return a, r.Err()
}

// signable returns the bytes that the peer signs. They include the target, the storing node and that node's
// token.
func (a *announcement) signable(namespace [32]byte, target, node dhtrpc.ID, token [32]byte) []byte {
	h := identity.Hash(target[:], node[:], token[:], appendPeer(nil, a.peer))
	return append(namespace[:], h[:]...)
}

// mutable is a signed record that its owner can replace.
type mutable struct {
	seq       uint64
	value     []byte
	signature [64]byte
}

func (m *mutable) append(b []byte) []byte {
	b = dhtrpc.AppendBuffer(dhtrpc.AppendUint(b, m.seq), m.value)
	return append(b, m.signature[:]...)
}

func readMutable(r *dhtrpc.Reader) mutable {
	return mutable{seq: r.Uint(), value: r.Buffer(), signature: r.Fixed64()}
}

func parseMutable(data []byte) (mutable, error) {
	r := dhtrpc.NewReader(data)
	m := readMutable(r)
	return m, r.Err()
}

func (m *mutable) signable() []byte {
	h := identity.Hash(dhtrpc.AppendBuffer(dhtrpc.AppendUint(nil, m.seq), m.value))
	return append(identity.MutablePut[:], h[:]...)
}

// parsePut decodes a mutable record, prefixed with its owner's key.
func parsePut(data []byte) (identity.PublicKey, mutable, error) {
	r := dhtrpc.NewReader(data)
	key := r.Fixed32()
	m := readMutable(r)
	return key, m, r.Err()
}

// The directions of a handshake or hole punching message.
const (
	fromClient = iota
	fromServer
	fromRelay
	fromSecondRelay
	reply
)

// relayed is a handshake message on its way between client, relay and server.
type relayed struct {
	mode  uint64
	noise []byte
	peer  netip.AddrPort // the other end, as the relay sees it; invalid if absent
	relay netip.AddrPort
}

const (
	flagPeerAddr = 1 << iota
	flagRelayAddr
)

func (m *relayed) append(b []byte) []byte {
	var flags uint64
	if m.peer.IsValid() {
		flags |= flagPeerAddr
	}
	if m.relay.IsValid() {
		flags |= flagRelayAddr
	}
	b = dhtrpc.AppendUint(dhtrpc.AppendUint(b, flags), m.mode)
	b = dhtrpc.AppendBuffer(b, m.noise)
	if m.peer.IsValid() {
		b = dhtrpc.AppendAddr(b, m.peer)
	}
	if m.relay.IsValid() {
		b = dhtrpc.AppendAddr(b, m.relay)
	}
	return b
}

func parseRelayed(data []byte) (*relayed, error) {
	r := dhtrpc.NewReader(data)
	flags := r.Uint()
	m := &relayed{mode: r.Uint(), noise: r.Buffer()}
	if flags&flagPeerAddr != 0 {
		m.peer = r.Addr()
	}
	if flags&flagRelayAddr != 0 {
		m.relay = r.Addr()
	}
	return m, r.Err()
}

// Errors in a handshake's payload.
const (
	payloadOK = iota
	payloadAborted
	payloadVersion
	payloadTryLater
)

const (
	payloadHasHolepunch = 1 << iota
	payloadHasAddrs4
	payloadHasAddrs6
	payloadHasUDX
	payloadHasSecretStream
	payloadHasRelayThrough
	payloadHasRelays
)

const protocolVersion = 1

// payload is what each end sends in the handshake.
type payload struct {
	version   uint64
	err       uint64
	firewall  dhtrpc.Class
	holepunch *holepunchInfo
	addrs     []netip.AddrPort
	streamID  uint32
	hasUDX    bool
	relays    []netip.AddrPort
}

// holepunchInfo names the relays through which the ends arrange hole punching.
type holepunchInfo struct {
	id     uint64
	relays []relayInfo
}

// relayInfo is a relay's address and the server's address as that relay sees it.
type relayInfo struct{ relay, peer netip.AddrPort }

func (p *payload) append(b []byte) []byte {
	flags := uint64(payloadHasSecretStream)
	if p.holepunch != nil {
		flags |= payloadHasHolepunch
	}
	if len(p.addrs) > 0 {
		flags |= payloadHasAddrs4
	}
	if p.hasUDX {
		flags |= payloadHasUDX
	}
	if len(p.relays) > 0 {
		flags |= payloadHasRelays
	}
	for _, v := range []uint64{protocolVersion, flags, p.err, uint64(p.firewall)} {
		b = dhtrpc.AppendUint(b, v)
	}
	if h := p.holepunch; h != nil {
		b = dhtrpc.AppendUint(dhtrpc.AppendUint(b, h.id), uint64(len(h.relays)))
		for _, r := range h.relays {
			b = dhtrpc.AppendAddr(dhtrpc.AppendAddr(b, r.relay), r.peer)
		}
	}
	if len(p.addrs) > 0 {
		b = dhtrpc.AppendAddrs(b, p.addrs)
	}
	if p.hasUDX {
		b = append(b, 1, 0) // version, features
		b = append(dhtrpc.AppendUint(b, uint64(p.streamID)), 0)
	}
	b = append(b, 1) // the secret stream's version
	if len(p.relays) > 0 {
		b = dhtrpc.AppendAddrs(b, p.relays)
	}
	return b
}

func parsePayload(data []byte) (*payload, error) {
	r := dhtrpc.NewReader(data)
	p := &payload{version: r.Uint()}
	if r.Err() != nil || p.version != protocolVersion {
		return p, r.Err()
	}
	flags := r.Uint()
	p.err, p.firewall = r.Uint(), dhtrpc.Class(r.Uint())
	if flags&payloadHasHolepunch != 0 {
		p.holepunch = &holepunchInfo{id: r.Uint()}
		for range r.Count(12) {
			p.holepunch.relays = append(p.holepunch.relays, relayInfo{r.Addr(), r.Addr()})
		}
	}
	if flags&payloadHasAddrs4 != 0 {
		p.addrs = r.Addrs()
	}
	if flags&payloadHasAddrs6 != 0 {
		r.Fixed(18 * r.Count(18))
	}
	if flags&payloadHasUDX != 0 {
		ok := r.Uint() == 1
		r.Uint() // features
		id := r.Uint()
		r.Uint() // the first sequence number, always 0
		p.streamID, p.hasUDX = uint32(id), ok && id <= 0xffffffff
	}
	if flags&payloadHasSecretStream != 0 {
		r.Uint()
	}
	if flags&payloadHasRelayThrough != 0 {
		r.Uint()
		r.Uint()
		r.Fixed(64)
	}
	if flags&payloadHasRelays != 0 {
		p.relays = r.Addrs()
	}
	return p, r.Err()
}
