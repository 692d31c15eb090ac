package hyperdht

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/identity"
)

func repeat(b byte) [32]byte { return [32]byte(bytes.Repeat([]byte{b}, 32)) }

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if hex.EncodeToString(got) != want {
		t.Errorf("%s is %x, want %s", what, got, want)
	}
}

const (
	keyOne            = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
	announceSigned    = "aca95eb369dab9e9217e9c878984b5dc434da73b11a7ec313aa8a1f3640cb5d2ea6b765d6a2b195c0ac1e458e8bb3e218adf2dff83169a60285c29613bc4d206"
	unannounceSigned  = "c9c6927cc502a2e56ee84fcaa76e955eb9fdf593cd4d48935d54da4be4c7ca40a3ffdd3684e4337f5f0e6fdc773c04f24b6d95628714fd3ef4d918bf1f022b01"
	mutableSigned     = "563f636d6d357642b088e989ccaf880f196dc28dca9e6bc00ff9612ce20eeef535aed98997424eb6caabd42545691df10e1ab9132748c1012c963869db33e406"
	firstPayload      = "011a0001017f00000188130100fe040302010001"
	secondPayload     = "011800010100070001"
	relayedByRelay    = "010202aabbc0000202d204"
	plainPunch        = "1e00020101c0000202d204c0000203e1100101010101010101010101010101010101010101010101010101010101010101"
	handshakeHashText = "5e59819b3b30433cedca1bceb6cbca0df4ef18ade0ed19a5ce0663c9bccc6cbafb2376e67e7142aed4eae2f942a5b7cca426d90e432e5f86ca2065cb3c005463"
)

// The expected bytes come from the npm packages.
//
// WIRE-T1.
func TestVectors(t *testing.T) {
	pair := identity.FromSeed(repeat(1))
	addr := netip.MustParseAddrPort("127.0.0.1:49737")
	peer := Peer{Key: pair.Public(), Relays: []netip.AddrPort{addr}}
	a := announcement{peer: peer}
	a.signature = pair.Sign(a.signable(identity.Announce, repeat(0x11), repeat(0x33), repeat(0x22)))
	same(t, "the announcement", encode(&a), "05"+keyOne+"017f00000149c2"+announceSigned)
	undo := pair.Sign(a.signable(identity.Unannounce, repeat(0x11), repeat(0x33), repeat(0x22)))
	same(t, "the unannouncement's signature", undo[:], unannounceSigned)
	same(t, "the lookup's answer", encode(&peers{peer}), "01"+keyOne+"017f00000149c200")

	m := mutable{seq: 5, value: []byte("hello")}
	m.signature = pair.Sign(m.signable())
	public := pair.Public()
	same(t, "the record", encode(&signedPut{public, m}), keyOne+"050568656c6c6f"+mutableSigned)

	p := payload{firewall: dhtrpc.Open, addrs: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5000")}, streamID: 0x01020304, hasUDX: true}
	same(t, "the client's payload", encode(&p), firstPayload)
	p = payload{firewall: dhtrpc.Open, streamID: 7, hasUDX: true}
	same(t, "the server's payload", encode(&p), secondPayload)

	same(t, "a client's handshake", encode(&relayed{noise: []byte{0xaa, 0xbb}}), "000002aabb")
	same(t, "a relay's handshake", encode(&relayed{mode: fromRelay, noise: []byte{0xaa, 0xbb}, peer: netip.MustParseAddrPort("192.0.2.2:1234")}), relayedByRelay)
	token := repeat(1)
	punch := punchPayload{firewall: dhtrpc.Consistent, round: 1, punching: true, token: &token,
		addrs: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:1234")}, remote: netip.MustParseAddrPort("192.0.2.3:4321")}
	same(t, "a punch payload", encode(&punch), plainPunch)
	key := identity.KeyedHash(unhex(t, handshakeHashText), identity.PeerHolepunch[:])
	same(t, "the punch key", key[:], "d396ecef3aa9aabb86168de8803bb186c237c5b8e40a99a10fbbcae3b68103fb")
}

func TestMessagesRoundTripThroughTheCoder(t *testing.T) {
	addrs := []netip.AddrPort{netip.MustParseAddrPort("1.2.3.4:5"), netip.MustParseAddrPort("6.7.8.9:10")}
	compare := cmp.Options{cmp.AllowUnexported(payload{}, holepunchInfo{}, relayInfo{}, relayed{}, holepunch{}, punchPayload{}, announcement{}, mutable{}),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })}
	diff := func(want, got any, err error) {
		t.Helper()
		if d := cmp.Diff(want, got, compare); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
	}
	p := &payload{version: 1, err: 3, firewall: dhtrpc.Random, holepunch: &holepunchInfo{9, []relayInfo{{addrs[0], addrs[1]}}}, addrs: addrs, streamID: 8, hasUDX: true, relays: addrs}
	got, err := decode[payload](encode(p))
	diff(p, got, err)
	r := &relayed{mode: fromSecondRelay, noise: []byte{1}, peer: addrs[0], relay: addrs[1]}
	gotR, err := decode[relayed](encode(r))
	diff(r, gotR, err)
	h := &holepunch{mode: fromRelay, id: 1 << 31, payload: []byte{1, 2}, peer: addrs[0]}
	gotH, err := decode[holepunch](encode(h))
	diff(h, gotH, err)
	token := repeat(2)
	pp := &punchPayload{err: 1, firewall: dhtrpc.Consistent, round: 3, punching: true, addrs: addrs, remote: addrs[1], token: &token, remoteToken: &token}
	gotP, err := decode[punchPayload](encode(pp))
	diff(pp, gotP, err)
	a := &announcement{peer: Peer{Key: repeat(3), Relays: addrs}, signature: [64]byte{4}}
	gotA, err := decode[announcement](encode(a))
	diff(a, gotA, err)
	m := mutable{seq: 4, value: []byte("x"), signature: [64]byte{5}}
	gotM, err := decode[mutable](encode(&m))
	diff(&m, gotM, err)
}

// Fields of later versions, and unused ones, are skipped.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	data := []byte{1, 4 | 8 | 32 | 64 | 16, 0, 1}       // addresses6, udx, relay-through, relays, secret stream
	data = append(append(data, 1), make([]byte, 18)...) // an IPv6 address
	data = append(data, 1, 1, 7, 0)                     // udx
	data = append(data, 1)                              // secret stream
	data = append(append(data, 1, 0), make([]byte, 64)...)
	data = append(data, 1, 1, 2, 3, 4, 5, 0)
	p, err := decode[payload](append(data, 9, 9))
	if err != nil || p.streamID != 7 || len(p.relays) != 1 || p.relays[0].String() != "1.2.3.4:5" {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := decode[payload]([]byte{2}); err != nil || p.version != 2 {
		t.Errorf("another version: %+v, %v", p, err)
	}
}

// WIRE-T25.
func FuzzPayload(f *testing.F) {
	f.Add(unhex(f, firstPayload))
	f.Add(unhex(f, secondPayload))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := decode[payload](data); err == nil && p.version == protocolVersion {
			if _, err := decode[payload](encode(p)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// WIRE-T25.
func FuzzMessages(f *testing.F) {
	f.Add(unhex(f, relayedByRelay))
	f.Add(unhex(f, plainPunch))
	f.Add(unhex(f, "05"+keyOne+"017f00000149c2"+announceSigned))
	f.Add(unhex(f, keyOne+"050568656c6c6f"+mutableSigned))
	f.Add(unhex(f, "01"+keyOne+"017f00000149c200"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := decode[relayed](data); err == nil {
			if _, err := decode[relayed](encode(m)); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := decode[holepunch](data); err == nil {
			if _, err := decode[holepunch](encode(m)); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := decode[punchPayload](data); err == nil {
			if _, err := decode[punchPayload](encode(m)); err != nil {
				t.Fatal(err)
			}
		}
		if a, err := decode[announcement](data); err == nil {
			if _, err := decode[announcement](encode(a)); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := decode[peers](data); err == nil && len(*all) > maxPeers {
			t.Fatalf("%d peers are decoded", len(*all))
		}
		_, _ = decode[Peer](data) // no panic
		_, _ = decode[signedPut](data)
		_, _ = decode[mutable](data)
	})
}

// FuzzRequests sends arbitrary commands, and handshakes with arbitrary payloads, to a node that listens on a key.
//
// WIRE-T25.
func FuzzRequests(f *testing.F) {
	f.Add(byte(cmdPeerHandshake), true, unhex(f, firstPayload))
	f.Add(byte(cmdPeerHolepunch), true, unhex(f, "010202aabbc0000202d204"))
	f.Add(byte(cmdAnnounce), true, unhex(f, "05"+keyOne+"017f00000149c2"+announceSigned))
	f.Add(byte(cmdMutablePut), false, unhex(f, keyOne+"050568656c6c6f"+mutableSigned))
	loopback := netip.MustParseAddrPort("127.0.0.1:0")
	n, err := Listen(Options{Listen: loopback, Public: loopback, HandshakeRate: 1e6})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { n.Close() })
	l, err := n.Listen(ListenOptions{})
	if err != nil {
		f.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept(n.ctx)
			if err != nil {
				return
			}
			c.Destroy()
		}
	}()
	peer := identity.FromSeed(repeat(1))
	from := netip.MustParseAddrPort("127.0.0.1:9")
	f.Fuzz(func(t *testing.T, command byte, listened bool, value []byte) {
		target := repeat(9)
		if listened {
			target = l.target
		}
		m := dhtrpc.Message{Command: uint64(command), Target: &target, Value: value}
		n.rpc.Receive(n.rpc.Socket(), m.Append(nil), from)
		i, err := secretstream.NewInitiator(peer, l.Key())
		if err != nil {
			t.Fatal(err)
		}
		msg, err := i.Message(value)
		if err != nil {
			t.Fatal(err)
		}
		m = dhtrpc.Message{Command: cmdPeerHandshake, Target: &l.target, Value: encode(&relayed{noise: msg})}
		n.rpc.Receive(n.rpc.Socket(), m.Append(nil), from)
	})
}
