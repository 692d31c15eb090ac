package lib0_test

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIntegersMatchLib0(t *testing.T) {
	for v, want := range map[uint64]string{0: "00", 127: "7f", 128: "8001", 300: "ac02", lib0.MaxSafe: "ffffffffffffff0f"} {
		b := lib0.AppendUint(nil, v)
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%d is encoded as %s, want %s", v, got, want)
		}
		r := lib0.NewReader(b)
		if got := r.Uint(); got != v || r.Err() != nil || r.Len() != 0 {
			t.Errorf("%s is decoded to %d, %v", want, got, r.Err())
		}
	}
	for v, want := range map[int64]string{0: "00", -1: "41", 63: "3f", 64: "8001", -64: "c001", math.MaxInt32: "bfffffff0f"} {
		b := lib0.AppendInt(nil, v)
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%d is encoded as %s, want %s", v, got, want)
		}
		r := lib0.NewReader(b)
		if got, negativeZero := r.Int(); got != v || negativeZero || r.Err() != nil {
			t.Errorf("%s is decoded to %d, %v", want, got, r.Err())
		}
	}
	for _, bad := range []string{"", "80", "ffffffffffffff10", "808080808080808001"} {
		b, err := hex.DecodeString(bad)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range map[string]*lib0.Reader{"Uint": lib0.NewReader(b), "Int": lib0.NewReader(append([]byte{0xff}, b...))} {
			if name == "Uint" {
				r.Uint()
			} else {
				r.Int()
			}
			if r.Err() == nil {
				t.Errorf("%s accepts %q", name, bad)
			}
		}
	}
}

func limits() *lib0.AnyLimits {
	return &lib0.AnyLimits{Depth: 4, Elements: 100, String: 50, Key: 10}
}

func TestValuesAreDecoded(t *testing.T) {
	all := "750b7f7e7978" + "7d40" + "7c3fc00000" + "7b3fb999999999999a" + "7affffffffffffffff" + "7703c3a978" + "7601016b7e" + "740107"
	raw, err := hex.DecodeString(all)
	if err != nil {
		t.Fatal(err)
	}
	r := lib0.NewReader(raw)
	got := lib0.Value(r.Any(limits()))
	want := []any{lib0.Undefined{}, nil, false, true, math.Copysign(0, -1), 1.5, 0.1, lib0.BigInt(-1), "éx", lib0.Object{{Key: "k"}}, []byte{7}}
	if r.Err() != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the value is %#v, %v", got, r.Err())
	}
	if lib0.BigInt(-5).String() != "-5" {
		t.Error("a BigInt is not encoded in decimal")
	}
	if b, err := (lib0.Undefined{}).MarshalJSON(); string(b) != "null" || err != nil {
		t.Errorf("undefined is %s, %v", b, err)
	}
}

func TestDuplicateKeysOfLargeObjectsAreRefused(t *testing.T) {
	object := func(last string) []byte {
		b := []byte{lib0.TagObject, 12}
		for i := range 12 {
			key := string(rune('a' + i))
			if i == 11 {
				key = last
			}
			b = append(lib0.AppendString(b, key), lib0.TagNull)
		}
		return b
	}
	for last, want := range map[string]error{"z": nil, "a": lib0.ErrDuplicate, "k": lib0.ErrDuplicate, "__proto__": lib0.ErrProto} {
		r := lib0.NewReader(object(last))
		if r.Any(limits()); r.Err() != want {
			t.Errorf("with the last key %q the error is %v, want %v", last, r.Err(), want)
		}
	}
}

func TestBoundsOfValues(t *testing.T) {
	array := func(n int, inner string) string { return strings.Repeat("\x75\x01", n) + inner }
	for name, c := range map[string]struct {
		data string
		want error
	}{
		"depth":          {array(4, "\x7e"), nil},
		"too deep":       {array(5, "\x7e"), lib0.ErrDepth},
		"elements":       {"\x75\x63" + strings.Repeat("\x7e", 99), nil},
		"too many":       {"\x75\x64" + strings.Repeat("\x7e", 100), lib0.ErrElements},
		"string":         {"\x77\x32" + strings.Repeat("x", 50), nil},
		"long string":    {"\x77\x33" + strings.Repeat("x", 51), lib0.ErrTooLong},
		"long bytes":     {"\x74\x33" + strings.Repeat("x", 51), lib0.ErrTooLong},
		"claimed string": {"\x77\x33x", lib0.ErrShort},
		"claimed array":  {"\x75\x33\x7e", lib0.ErrShort},
		"no UTF-8":       {"\x77\x01\xff", lib0.ErrUTF8},
		"unknown tag":    {"\x73", lib0.ErrTag},
	} {
		r := lib0.NewReader([]byte(c.data))
		if r.Any(limits()); r.Err() != c.want {
			t.Errorf("%s: the error is %v, want %v", name, r.Err(), c.want)
		}
	}
}

// Any accepted value can be decoded, and the decoder reads nothing beyond it.
func FuzzAny(f *testing.F) {
	for _, s := range []string{"\x75\x02\x7e\x76\x01\x01k\x7d\x40", "\x7c\x3f\xc0\x00\x00", "\x77\x01x", "\x7a\x00\x00\x00\x00\x00\x00\x00\x05"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := lib0.NewReader(data)
		raw := r.Any(limits())
		if r.Err() != nil {
			return
		}
		if !bytes.Equal(raw, data[:r.Pos()]) {
			t.Fatalf("the raw value of %x is %x", data, raw)
		}
		lib0.Value(raw)
	})
}

func FuzzNumber(f *testing.F) {
	for _, v := range []float64{0, 1.5, 0.1, 1 << 31, -1 << 31, math.Inf(1), math.NaN()} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v float64) {
		r := lib0.NewReader(lib0.AppendNumber(nil, v))
		got := lib0.Value(r.Any(limits())).(float64)
		if r.Err() != nil || got != v && !(got != got && v != v) || math.Signbit(got) != math.Signbit(v) && v == v {
			t.Fatalf("%v is decoded to %v, %v", v, got, r.Err())
		}
	})
}
