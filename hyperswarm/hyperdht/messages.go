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

// message is a message with its encoding.
type message interface{ code(c *dhtrpc.Coder) }

func encode(m message) []byte { return dhtrpc.Encode(nil, m.code) }

// decode decodes a message, for example a *payload. The message refers to data.
func decode[T any, M interface {
	*T
	message
}](data []byte) (*T, error) {
	m := M(new(T))
	err := dhtrpc.Decode(data, m.code)
	return m, err
}

func (p *Peer) code(c *dhtrpc.Coder) {
	c.Fixed(p.Key[:])
	c.Addrs(&p.Relays)
}

// peers is the answer to a lookup.
type peers []Peer

func (all *peers) code(c *dhtrpc.Coder) {
	dhtrpc.List(c, (*[]Peer)(all), peerSize, func(p *Peer) { p.code(c) })
	if !c.Decodes() {
		c.Uint(new(uint64)) // the unused "bump" field
		return
	}
	*all = (*all)[:min(len(*all), maxPeers)]
	for i, p := range *all {
		(*all)[i].Relays = p.Relays[:min(len(p.Relays), maxRelays)]
	}
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
	peer      Peer
	signature [64]byte
}

// code codes an announcement with a peer and a signature. Refreshes, which have neither, are not supported.
func (a *announcement) code(c *dhtrpc.Coder) {
	flags := c.Flags(true, false, true)
	if flags&announcePeer == 0 || flags&announceSignature == 0 || flags&announceRefresh != 0 {
		c.Fail()
		return
	}
	a.peer.code(c)
	c.Fixed(a.signature[:])
	if flags&announceBump != 0 {
		c.Uint(new(uint64))
	}
}

// signable returns the bytes that the peer signs. They include the target, the storing node and that node's token.
func (a *announcement) signable(namespace [32]byte, target, node dhtrpc.ID, token [32]byte) []byte {
	h := identity.Hash(target[:], node[:], token[:], encode(&a.peer))
	return append(namespace[:], h[:]...)
}

// mutable is a signed record that its owner can replace.
type mutable struct {
	seq       uint64
	value     []byte
	signature [64]byte
}

func (m *mutable) code(c *dhtrpc.Coder) {
	c.Uint(&m.seq)
	c.Buffer(&m.value)
	c.Fixed(m.signature[:])
}

func (m *mutable) signable() []byte {
	h := identity.Hash(dhtrpc.AppendBuffer(dhtrpc.AppendUint(nil, m.seq), m.value))
	return append(identity.MutablePut[:], h[:]...)
}

// signedPut is a mutable record with its owner's key.
type signedPut struct {
	key identity.PublicKey
	mutable
}

func (p *signedPut) code(c *dhtrpc.Coder) {
	c.Fixed(p.key[:])
	p.mutable.code(c)
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

func (m *relayed) code(c *dhtrpc.Coder) {
	flags := c.Flags(m.peer.IsValid(), m.relay.IsValid())
	c.Uint(&m.mode)
	c.Buffer(&m.noise)
	if flags&flagPeerAddr != 0 {
		c.Addr(&m.peer)
	}
	if flags&flagRelayAddr != 0 {
		c.Addr(&m.relay)
	}
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

func (p *payload) code(c *dhtrpc.Coder) {
	if !c.Decodes() {
		p.version = protocolVersion
	}
	if c.Uint(&p.version); p.version != protocolVersion {
		return
	}
	flags := c.Flags(p.holepunch != nil, len(p.addrs) > 0, false, p.hasUDX, true, false, len(p.relays) > 0)
	c.Uint(&p.err)
	c.Uint((*uint64)(&p.firewall))
	if flags&payloadHasHolepunch != 0 {
		if c.Decodes() {
			p.holepunch = new(holepunchInfo)
		}
		c.Uint(&p.holepunch.id)
		dhtrpc.List(c, &p.holepunch.relays, 12, func(r *relayInfo) {
			c.Addr(&r.relay)
			c.Addr(&r.peer)
		})
	}
	if flags&payloadHasAddrs4 != 0 {
		c.Addrs(&p.addrs)
	}
	if flags&payloadHasAddrs6 != 0 {
		dhtrpc.List(c, new([][18]byte), 18, func(a *[18]byte) { c.Fixed(a[:]) })
	}
	if flags&payloadHasUDX != 0 {
		version, id := uint64(1), uint64(p.streamID)
		c.Uint(&version)
		c.Uint(new(uint64)) // features
		c.Uint(&id)
		c.Uint(new(uint64)) // the first sequence number, always 0
		p.streamID, p.hasUDX = uint32(id), version == 1 && id <= 0xffffffff
	}
	if flags&payloadHasSecretStream != 0 {
		version := uint64(1)
		c.Uint(&version)
	}
	if flags&payloadHasRelayThrough != 0 {
		c.Uint(new(uint64))
		c.Uint(new(uint64))
		c.Fixed(make([]byte, 64))
	}
	if flags&payloadHasRelays != 0 {
		c.Addrs(&p.relays)
	}
}
