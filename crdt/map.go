package crdt

import (
	"iter"
	"strconv"

	"github.com/parleyhub/parley/crdt/internal/lib0"
)

// Map is a shared map from strings to values and shared types.
type Map struct{ n *node }

// Map returns the root map with a name.
func (d *Doc) Map(name string) *Map {
	return &Map{d.rootAs(name, typeMap)}
}

// Set sets a key's value; see [Undefined] for the possible values. If replicas set a key concurrently, all
// of them keep the same value.
func (m *Map) Set(key string, value any) error {
	return m.n.edit(func(d *Doc) error {
		it, err := d.content(value)
		if err != nil {
			return err
		}
		return m.put(key, it)
	})
}

func (m *Map) put(key string, it *item) error {
	d := m.n.doc
	if err := d.checkKey(key); err != nil {
		return err
	}
	d.put(m.n, wellFormed(key), it)
	return nil
}

// SetMap sets a key's value to a new, empty map.
func (m *Map) SetMap(key string) (*Map, error) { return setType[Map](m, key, typeMap) }

// SetArray sets a key's value to a new, empty array.
func (m *Map) SetArray(key string) (*Array, error) { return setType[Array](m, key, typeArray) }

// SetText sets a key's value to a new, empty text.
func (m *Map) SetText(key string) (*Text, error) { return setType[Text](m, key, typeText) }

func setType[T ~struct{ n *node }](m *Map, key string, ref typeRef) (*T, error) {
	return newType[T](m.n, ref, func(it *item) error { return m.put(key, it) })
}

// Delete deletes a key's value, if there is one. A value set concurrently stays.
func (m *Map) Delete(key string) error {
	return m.n.edit(func(d *Doc) error {
		if it := m.n.live(key); it != nil {
			d.delete(it)
		}
		return nil
	})
}

// Get returns a key's value, or its *[Map], *[Array] or *[Text].
func (m *Map) Get(key string) (any, bool) {
	it := m.n.live(key)
	if it == nil {
		return nil, false
	}
	return it.value(it.length - 1), true
}

// Len returns the number of keys that have a value.
func (m *Map) Len() int {
	n := 0
	for key := range m.n.keys {
		if m.n.live(key) != nil {
			n++
		}
	}
	return n
}

// All yields the keys with their values, sorted by key.
func (m *Map) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for key := range sorted(m.n.keys) {
			if v, ok := m.Get(key); ok && !yield(key, v) {
				return
			}
		}
	}
}

// JSON returns the map as JSON with sorted keys.
func (m *Map) JSON() ([]byte, error) { return m.n.appendJSON(nil, typeMap) }

// Counter is a map with an entry for each client, which only that client changes. Its value is their sum,
// so concurrent additions all count.
type Counter struct{ m *Map }

// Counter returns the root counter with a name.
func (d *Doc) Counter(name string) *Counter { return &Counter{d.Map(name)} }

// CounterOf returns a map as a counter.
func CounterOf(m *Map) *Counter { return &Counter{m} }

// Add adds n, which may be negative. It fails if this replica's entry would exceed ±(2^53-1).
func (c *Counter) Add(n int64) error {
	return c.m.n.edit(func(d *Doc) error {
		key := strconv.FormatUint(d.id, 10)
		part := n
		if v, ok := c.m.Get(key); ok {
			i, ok := integral(v)
			if !ok {
				return errorf(CodeInvalid, nil, "the counter's entry %s is not an integer", key)
			}
			part += i
		}
		for _, v := range []int64{part, n} {
			if v > lib0.MaxSafe || v < -lib0.MaxSafe {
				return errorf(CodeInvalid, nil, "an entry of a counter must stay within ±(2^53-1)")
			}
		}
		return c.m.Set(key, part)
	})
}

// Value returns the sum of all integers in the map.
func (c *Counter) Value() int64 {
	var sum int64
	for _, v := range c.m.All() {
		i, _ := integral(v)
		sum += i
	}
	return sum
}

// integral returns the integer in a decoded value, and 0 and false if it is none.
func integral(v any) (int64, bool) {
	f, ok := v.(float64)
	if !ok || f != float64(int64(f)) {
		return 0, false
	}
	return int64(f), true
}
