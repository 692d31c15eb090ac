//go:build interop

package yjs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

var roots = command{"map": []string{"m"}, "array": []string{"l"}, "text": []string{"t"}}

// writer is a replica that edits; it is implemented by this engine and by npm yjs.
type writer interface {
	edit(ops []command) [][]byte
	apply(updates [][]byte)
	vector() []byte
	since(vector []byte) []byte
	result() result
}

type goWriter struct {
	t testing.TB
	d *crdt.Doc
}

func (w goWriter) apply(updates [][]byte) {
	w.t.Helper()
	for _, u := range updates {
		if _, err := w.d.Apply(u, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w goWriter) edit(ops []command) [][]byte {
	w.t.Helper()
	u, err := w.d.Transact(nil, func() error {
		for _, op := range ops {
			if err := run(w.d, op); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if u == nil {
		return nil
	}
	return [][]byte{u}
}

func (w goWriter) vector() []byte { return w.d.StateVector().Encode() }

func (w goWriter) since(vector []byte) []byte {
	w.t.Helper()
	sv, err := crdt.DecodeStateVector(vector, 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.d.EncodeSince(sv)
}

func (w goWriter) result() result { return goResult(w.t, w.d) }

// run executes a command on a document of this engine, as bridge.mjs does on one of npm yjs.
func run(d *crdt.Doc, c command) error {
	root := c["root"].(string)
	switch c["op"] {
	case "set":
		if v, ok := c["value"].(command); ok {
			return setType(d.Map(root), c["key"].(string), v)
		}
		return d.Map(root).Set(c["key"].(string), c["value"])
	case "delete":
		return d.Map(root).Delete(c["key"].(string))
	case "insert":
		l := d.Array(root)
		i := c["index"].(int) % (l.Len() + 1)
		for k, v := range c["values"].([]any) {
			if v, ok := v.(command); ok {
				if err := insertType(l, i+k, v); err != nil {
					return err
				}
				continue
			}
			if err := l.Insert(i+k, v); err != nil {
				return err
			}
		}
		return nil
	case "remove":
		l := d.Array(root)
		i := min(c["index"].(int), l.Len())
		return l.Delete(i, min(c["count"].(int), l.Len()-i))
	case "nested":
		for _, v := range d.Array(root).All() {
			if m, ok := v.(*crdt.Map); ok {
				return m.Set(c["key"].(string), c["value"])
			}
		}
		return nil
	case "write":
		t := d.Text(root)
		i := c["index"].(int) % (t.Len() + 1)
		if a, ok := c["attributes"].(command); ok {
			return t.InsertWith(i, c["text"].(string), crdt.Attributes(a))
		}
		return t.Insert(i, c["text"].(string))
	case "erase":
		t := d.Text(root)
		i := min(c["index"].(int), t.Len())
		return t.Delete(i, min(c["count"].(int), t.Len()-i))
	case "format":
		t := d.Text(root)
		i := min(c["index"].(int), t.Len())
		return t.Format(i, min(c["count"].(int), t.Len()-i), crdt.Attributes(c["attributes"].(command)))
	case "embed":
		t := d.Text(root)
		return t.InsertEmbed(c["index"].(int)%(t.Len()+1), c["value"], nil)
	}
	return fmt.Errorf("unknown operation %v", c["op"])
}

func setType(m *crdt.Map, key string, v command) error {
	var err error
	switch v["type"] {
	case "map":
		_, err = m.SetMap(key)
	case "array":
		_, err = m.SetArray(key)
	case "text":
		_, err = m.SetText(key)
	default:
		err = fmt.Errorf("unknown type %v", v["type"])
	}
	return err
}

func insertType(l *crdt.Array, i int, v command) error {
	var err error
	switch v["type"] {
	case "map":
		_, err = l.InsertMap(i)
	case "array":
		_, err = l.InsertArray(i)
	case "text":
		_, err = l.InsertText(i)
	default:
		err = fmt.Errorf("unknown type %v", v["type"])
	}
	return err
}

type npmWriter struct {
	b  *bridge
	id int
}

func (w npmWriter) apply(updates [][]byte) {
	if len(updates) > 0 {
		w.b.do(command{"op": "apply", "doc": w.id, "updates": updates})
	}
}

func (w npmWriter) edit(ops []command) [][]byte {
	r := w.b.do(command{"op": "edit", "doc": w.id, "edits": ops})
	return decode[[][]byte](w.b.t, r[0])
}

func (w npmWriter) vector() []byte {
	return decode[[]byte](w.b.t, w.b.do(command{"op": "vector", "doc": w.id})[0])
}

func (w npmWriter) since(vector []byte) []byte {
	return decode[[]byte](w.b.t, w.b.do(command{"op": "state", "doc": w.id, "vector": vector})[0])
}

func (w npmWriter) result() result {
	rs := w.b.do(command{"op": "state", "doc": w.id}, command{"op": "json", "doc": w.id, "roots": roots})
	return result{string(decode[[]byte](w.b.t, rs[0])), canonicalJSON(w.b.t, decode[string](w.b.t, rs[1]))}
}

// denseEdit draws an edit near the beginning of one of three roots, so that most edits conflict.
func denseEdit(r *rand.Rand, who, n int) command {
	key := string("ab"[r.IntN(2)])
	switch r.IntN(12) {
	case 0, 1:
		return command{"op": "set", "root": "m", "key": key, "value": who*100 + n}
	case 2:
		return command{"op": "delete", "root": "m", "key": key}
	case 3:
		kind := []string{"map", "array", "text"}[r.IntN(3)]
		if r.IntN(2) == 0 {
			return command{"op": "set", "root": "m", "key": key, "value": command{"type": kind}}
		}
		return command{"op": "insert", "root": "l", "index": r.IntN(3), "values": []any{command{"type": kind}}}
	case 4, 5:
		values := make([]any, 1+r.IntN(3))
		for i := range values {
			values[i] = []any{who*100 + n, true, nil, "x", 1.5}[r.IntN(5)]
		}
		return command{"op": "insert", "root": "l", "index": r.IntN(3), "values": values}
	case 6:
		return command{"op": "remove", "root": "l", "index": r.IntN(3), "count": 1 + r.IntN(2)}
	case 7:
		return command{"op": "nested", "root": "l", "key": key, "value": n}
	case 8, 9, 10:
		return command{"op": "write", "root": "t", "index": r.IntN(3), "text": []string{"a", "bc", "😀d", "efg"}[r.IntN(4)]}
	default:
		return command{"op": "erase", "root": "t", "index": r.IntN(3), "count": 1 + r.IntN(3)}
	}
}

// result is the part of a replica that tests compare.
type result struct {
	state, json string
}

func (r result) equal(o result) bool { return r == o }

// difference reports the first position at which two results differ.
func (r result) difference(o result) string {
	where := func(a, b string, verb string) string {
		i := 0
		for i < min(len(a), len(b)) && a[i] == b[i] {
			i++
		}
		around := func(s string) string { return fmt.Sprintf(verb, s[max(0, i-24):min(len(s), i+24)]) }
		return fmt.Sprintf("at byte %d of %d and %d there is\n%s\nand\n%s", i, len(a), len(b), around(a), around(b))
	}
	if r.json != o.json {
		return where(r.json, o.json, "%s")
	}
	return where(r.state, o.state, "%x")
}

func npmResult(b *bridge, updates [][]byte) result {
	rs := b.do(command{"op": "new", "doc": "fresh", "client": 999}, command{"op": "apply", "doc": "fresh", "updates": updates},
		command{"op": "state", "doc": "fresh"}, command{"op": "json", "doc": "fresh", "roots": roots})
	return result{string(decode[[]byte](b.t, rs[2])), canonicalJSON(b.t, decode[string](b.t, rs[3]))}
}

func goResult(t testing.TB, d *crdt.Doc) result {
	t.Helper()
	m, err := d.Map("m").JSON()
	if err != nil {
		t.Fatal(err)
	}
	l, err := d.Array("l").JSON()
	if err != nil {
		t.Fatal(err)
	}
	runs := d.Text("t").Runs()
	if runs == nil {
		runs = []crdt.Run{}
	}
	text, err := json.Marshal(runs)
	if err != nil {
		t.Fatal(err)
	}
	return result{string(d.Snapshot()), canonicalJSON(t, fmt.Sprintf(`{"m":%s,"l":%s,"t":%s}`, m, l, text))}
}

func canonicalJSON(t testing.TB, s string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Two to five writers of both engines edit the same few positions and exchange updates only sometimes. In any
// order, a new replica of each engine ends with the same bytes (Property 28).
func TestDenseConflictsEndByteIdentical(t *testing.T) {
	b := newBridge(t)
	for seed := range uint64(*scenarios) {
		r := rand.New(rand.NewPCG(seed, 1))
		dense(t, b, r, seed)
		if t.Failed() {
			return
		}
	}
}

func dense(t *testing.T, b *bridge, r *rand.Rand, seed uint64) {
	ids := r.Perm(9)
	n := 2 + r.IntN(4)
	var writers []writer
	var all [][]byte
	seen := make([]map[int]bool, n)
	for i := range n {
		seen[i] = map[int]bool{}
		if r.IntN(3) == 0 {
			b.do(command{"op": "new", "doc": i, "client": ids[i] + 1})
			writers = append(writers, npmWriter{b, i})
		} else {
			writers = append(writers, goWriter{t, crdt.New(crdt.Options{Client: uint64(ids[i] + 1)})})
		}
	}
	for range 3 {
		for i, w := range writers {
			var ops []command
			for k := range 1 + r.IntN(3) {
				ops = append(ops, denseEdit(r, ids[i]+1, k))
			}
			for _, u := range w.edit(ops) {
				seen[i][len(all)] = true
				all = append(all, u)
			}
		}
		for i, w := range writers {
			var news [][]byte
			for k, u := range all {
				if !seen[i][k] && r.IntN(2) == 0 {
					seen[i][k] = true
					news = append(news, u)
				}
			}
			w.apply(news)
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	d := crdt.New(crdt.Options{})
	goWriter{t, d}.apply(all)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	got, want := goResult(t, d), npmResult(b, all)
	if !got.equal(want) {
		t.Errorf("seed %d: this engine has\n%x\n%s\nnpm yjs has\n%x\n%s", seed, got.state, got.json, want.state, want.json)
		return
	}
	// Each writer has the same state once it has applied all updates.
	for i, w := range writers {
		w.apply(all)
		if g, ok := w.(goWriter); ok {
			if one := goResult(t, g.d); !one.equal(want) {
				t.Errorf("seed %d: writer %d has\n%x\n%s\nnpm yjs has\n%x\n%s", seed, i, one.state, one.json, want.state, want.json)
				return
			}
		}
	}
	checkDifference(t, b, r, d)
}

// checkDifference compares the answers of both engines to a random state vector.
func checkDifference(t *testing.T, b *bridge, r *rand.Rand, d *crdt.Doc) {
	t.Helper()
	sv := crdt.StateVector{}
	for client, clock := range d.StateVector() {
		if n := r.Uint64N(clock + 1); n > 0 {
			sv[client] = n
		}
	}
	rs := b.do(command{"op": "state", "doc": "fresh", "vector": sv.Encode()})
	if got, want := d.EncodeSince(sv), decode[[]byte](t, rs[0]); !bytes.Equal(got, want) {
		t.Errorf("since %v this engine answers\n%x, npm yjs\n%x", sv, got, want)
	}
}
