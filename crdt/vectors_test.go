package crdt_test

import (
	"encoding/hex"
	"math"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/crdt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// vectors are complete states written by npm yjs 13.6.33.
var vectors = []struct{ name, update, json string }{
	{"text", "010101000401017402616200", `{"t":"ab"}`},
	{"text after a delete", "01020100010101740184010001620101010001", `{"t":"b"}`},
	{"map", "010101002801016d016b017d0100", `{"m":{"k":1}}`},
	{"map set twice", "010201002101016d016b01a80100017701760101010001", `{"m":{"k":"v"}}`},
	{"array in a map", "010201002701016d016b0008000100017800", `{"m":{"k":[true]}}`},
	{"array in a map, deleted", "010201002101016d016b0100010101010002", `{"m":{}}`},
	{"list of values and bytes", "010201000801016c047d017d417c3fc000007e830103010700", `{"l":[1,-1,1.5,null,"Bw=="]}`},
	{"two clients", "0202ac020004010174016184ac02000163010100c4ac0200ac0201016200", `{"t":"abc"}`},
	{"bold text", "01030100060101740162047472756584010004626f6c648601040162046e756c6c00", `{"t":"bold"}`},
	{"empty", "0000", `{}`},
}

func unhex(t tb, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestVectorsOfYjsRoundTrip(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			d := crdt.New(crdt.Options{})
			if _, err := d.Apply(unhex(t, v.update), nil); err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(d.Snapshot()); got != v.update {
				t.Errorf("the state is\n%s, want\n%s", got, v.update)
			}
			if got := mustJSON(t, d); got != v.json {
				t.Errorf("the JSON is %s, want %s", got, v.json)
			}
		})
	}
}

func mustJSON(t tb, d *crdt.Doc) string {
	t.Helper()
	b, err := d.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// An edit is encoded to the same bytes as by npm yjs 13.6.33.
func TestEditsEncodeAsInYjs(t *testing.T) {
	for _, c := range []struct {
		name, want string
		edit       func(d *crdt.Doc) error
	}{
		{"text", vectors[0].update, func(d *crdt.Doc) error { return d.Text("t").Insert(0, "ab") }},
		{"text after a delete", vectors[1].update, func(d *crdt.Doc) error {
			return in(d, func() error { return d.Text("t").Insert(0, "ab") }, func() error { return d.Text("t").Delete(0, 1) })
		}},
		{"map", vectors[2].update, func(d *crdt.Doc) error { return d.Map("m").Set("k", 1) }},
		{"map set twice", vectors[3].update, func(d *crdt.Doc) error {
			return in(d, func() error { return d.Map("m").Set("k", 1) }, func() error { return d.Map("m").Set("k", "v") })
		}},
		{"array in a map, deleted", vectors[5].update, func(d *crdt.Doc) error {
			a, err := d.Map("m").SetArray("k")
			return in(d, func() error { return err }, func() error { return a.Append(true) }, func() error { return d.Map("m").Delete("k") })
		}},
		{"list of values and bytes", vectors[6].update, func(d *crdt.Doc) error {
			return d.Array("l").Append(1, -1, 1.5, nil, []byte{7})
		}},
		{"bold text", vectors[8].update, func(d *crdt.Doc) error {
			return d.Text("t").InsertWith(0, "bold", crdt.Attributes{"b": true})
		}},
		{"numbers", "010101000801016c087d407d3f7d80017dbfffffff0f7c4f0000007b7ff80000000000007c7f8000007b3fb999999999999a00", func(d *crdt.Doc) error {
			return d.Array("l").Append(math.Copysign(0, -1), 63, 64, math.MaxInt32, int64(1<<31), math.NaN(), math.Inf(1), 0.1)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := crdt.New(crdt.Options{Client: 1})
			if err := c.edit(d); err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(d.Snapshot()); got != c.want {
				t.Errorf("the state is\n%s, want\n%s", got, c.want)
			}
		})
	}
}

func in(_ *crdt.Doc, steps ...func() error) error {
	for _, s := range steps {
		if err := s(); err != nil {
			return err
		}
	}
	return nil
}

// tb is the part that *testing.T, *testing.B and *rapid.T share.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}
