package dhtrpc_test

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/hyperswarm/dhtrpc"
)

// The expected bytes come from the npm packages.
//
// WIRE-T1.
func TestCompactVectors(t *testing.T) {
	for v, want := range map[uint64]string{
		0: "00", 252: "fc", 253: "fdfd00", 65535: "fdffff", 65536: "fe00000100", 1<<32 - 1: "feffffffff", 1 << 32: "ff0000000001000000",
	} {
		data := dhtrpc.AppendUint(nil, v)
		if got := hex.EncodeToString(data); got != want {
			t.Errorf("%d is encoded as %s, want %s", v, got, want)
		}
		r := dhtrpc.NewReader(data)
		if got := r.Uint(); got != v || r.Err() != nil || r.Len() != 0 {
			t.Errorf("%s is decoded as %d, %v", want, got, r.Err())
		}
	}
	a := netip.MustParseAddrPort("127.0.0.1:49737")
	if got := hex.EncodeToString(dhtrpc.AppendAddr(nil, a)); got != "7f00000149c2" {
		t.Errorf("the address is %s", got)
	}
	list := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("192.0.2.2:49737")}
	if got := hex.EncodeToString(dhtrpc.AppendAddrs(nil, list)); got != "020a0000010100c000020249c2" {
		t.Errorf("the list is %s", got)
	}
}

func TestCompactRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(0, dhtrpc.MaxUint).Draw(t, "number")
		buf := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "buffer")
		addrs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.AddrPort {
			ip := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip)), rapid.Uint16().Draw(t, "port"))
		}), 0, 5).Draw(t, "addresses")
		data := dhtrpc.AppendAddrs(dhtrpc.AppendBuffer(dhtrpc.AppendUint(nil, n), buf), addrs)
		r := dhtrpc.NewReader(data)
		if got := r.Uint(); got != n {
			t.Fatalf("%d became %d", n, got)
		}
		if got := r.Buffer(); !bytes.Equal(got, buf) || got == nil {
			t.Fatalf("%x became %x", buf, got)
		}
		if got := r.Addrs(); !slices.Equal(got, addrs) {
			t.Fatalf("%v became %v", addrs, got)
		}
		if r.Err() != nil || r.Len() != 0 {
			t.Fatalf("%v, %d bytes are left", r.Err(), r.Len())
		}
	})
}

func TestCompactRejectsInvalidInput(t *testing.T) {
	read := map[string]func(r *dhtrpc.Reader){
		"":                   func(r *dhtrpc.Reader) { r.Uint() },
		"fd01":               func(r *dhtrpc.Reader) { r.Uint() },
		"fe010203":           func(r *dhtrpc.Reader) { r.Uint() },
		"ff01":               func(r *dhtrpc.Reader) { r.Uint() },
		"ff00000000000020ff": func(r *dhtrpc.Reader) { r.Uint() },
		"05aabb":             func(r *dhtrpc.Reader) { r.Buffer() },
		"feffffffff00":       func(r *dhtrpc.Reader) { r.Addrs() },
		"0a0000":             func(r *dhtrpc.Reader) { r.Addr() },
		"01":                 func(r *dhtrpc.Reader) { r.Fixed32() },
		"02":                 func(r *dhtrpc.Reader) { r.Fixed64() },
	}
	for text, f := range read {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		r := dhtrpc.NewReader(data)
		f(r)
		if r.Err() == nil {
			t.Errorf("%q was decoded without an error", text)
		}
		if r.Uint() != 0 || r.Buffer() != nil || r.Addr().IsValid() || r.U16() != 0 || r.U32() != 0 {
			t.Errorf("%q: the reader returns a value after an error", text)
		}
	}
}

// Encodings that are longer than needed are decoded, but never produced.
func TestLongFormsAreDecoded(t *testing.T) {
	for _, text := range []string{"fd0500", "fe05000000", "ff0500000000000000"} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if r := dhtrpc.NewReader(data); r.Uint() != 5 || r.Err() != nil {
			t.Errorf("%s is not 5: %v", text, r.Err())
		}
	}
}

// WIRE-T25.
func FuzzReader(f *testing.F) {
	f.Add([]byte{2, 10, 0, 0, 1, 1, 0, 0xc0, 0, 2, 2, 0x49, 0xc2})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := dhtrpc.NewReader(data)
		for r.Err() == nil && r.Len() > 0 {
			r.Uint()
			r.Buffer()
			r.Addrs()
		}
	})
}
