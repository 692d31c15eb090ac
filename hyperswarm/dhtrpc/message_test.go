package dhtrpc_test

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The expected bytes come from the npm packages.
//
// WIRE-T1.
func TestVectors(t *testing.T) {
	for want, m := range map[string]dhtrpc.Message{
		"030407007f000001010000": {TID: 7, To: netip.MustParseAddrPort("127.0.0.1:1"), Internal: true},
		"130007007f0000010200":   {Response: true, TID: 7, To: netip.MustParseAddrPort("127.0.0.1:2")},
		"130c07007f0000010200017f0000010100" + "02": {Response: true, TID: 7, To: netip.MustParseAddrPort("127.0.0.1:2"), Error: 2,
			Closer: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}},
	} {
		if got := hex.EncodeToString(m.Append(nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func message() *rapid.Generator[dhtrpc.Message] {
	addr := rapid.Custom(func(t *rapid.T) netip.AddrPort {
		ip := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip)), rapid.Uint16().Draw(t, "port"))
	})
	id := rapid.Custom(func(t *rapid.T) *[32]byte {
		if rapid.Bool().Draw(t, "absent") {
			return nil
		}
		v := [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "id"))
		return &v
	})
	return rapid.Custom(func(t *rapid.T) dhtrpc.Message {
		m := dhtrpc.Message{TID: rapid.Uint16().Draw(t, "tid"), To: addr.Draw(t, "to"), ID: id.Draw(t, "id"), Token: id.Draw(t, "token")}
		if m.Response = rapid.Bool().Draw(t, "response"); m.Response {
			if n := rapid.IntRange(0, 20).Draw(t, "closer"); n > 0 {
				m.Closer = rapid.SliceOfN(addr, n, n).Draw(t, "addresses")
			}
			m.Error = rapid.Uint64Range(0, 300).Draw(t, "error")
		} else {
			m.Internal, m.Command, m.Target = rapid.Bool().Draw(t, "internal"), rapid.Uint64Range(0, 300).Draw(t, "command"), id.Draw(t, "target")
		}
		if rapid.Bool().Draw(t, "value") {
			m.Value = rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "bytes")
		}
		return m
	})
}

func TestMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := message().Draw(t, "message")
		data := m.Append(nil)
		back, err := dhtrpc.Parse(append(data, 1, 2, 3)) // later versions may append fields
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, *back, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
			t.Fatal(d)
		}
		for n := range data {
			if _, err := dhtrpc.Parse(data[:n]); err == nil {
				t.Fatalf("a message cut to %d of %d bytes was accepted", n, len(data))
			}
		}
	})
}

// WIRE-T25.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"030407007f000001010000", "130007007f0000010200", "ff00", ""} {
		data, err := hex.DecodeString(text)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := dhtrpc.Parse(data)
		if err != nil {
			return
		}
		if _, err := dhtrpc.Parse(m.Append(nil)); err != nil {
			t.Fatalf("%+v does not decode after encoding: %v", m, err)
		}
	})
}
