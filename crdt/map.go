package crdt

import "iter"

// Map is a shared map from strings to values and shared types.
type Map struct{ n *node }

// Map returns the root map with a name.
func (d *Doc) Map(name string) *Map {
	n := d.root(name)
	n.cast = typeMap
	return &Map{n}
}

// Set sets a key's value; see [Undefined] for the possible values. If replicas set a key concurrently, all
// of them keep the same value.
func (m *Map) Set(key string, value any) error {
	return m.n.edit(func(d *Doc) error {
		if err := d.checkKey(key); err != nil {
			return err
		}
		it, err := d.content(value)
		if err != nil {
			return err
		}
		d.put(m.n, wellFormed(key), it)
		return nil
	})
}

// SetMap sets a key's value to a new, empty map.
func (m *Map) SetMap(key string) (*Map, error) {
	n, err := m.setType(key, typeMap)
	return &Map{n}, err
}

// SetArray sets a key's value to a new, empty array.
func (m *Map) SetArray(key string) (*Array, error) {
	n, err := m.setType(key, typeArray)
	return &Array{n}, err
}

// SetText sets a key's value to a new, empty text.
func (m *Map) SetText(key string) (*Text, error) {
	n, err := m.setType(key, typeText)
	return &Text{n}, err
}

func (m *Map) setType(key string, ref typeRef) (n *node, err error) {
	err = m.n.edit(func(d *Doc) error {
		if err := d.checkKey(key); err != nil {
			return err
		}
		it, err := d.newType(m.n, ref)
		if err != nil {
			return err
		}
		d.put(m.n, wellFormed(key), it)
		n = it.node
		return nil
	})
	return n, err
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
		for _, key := range sortedKeys(m.n.keys) {
			if v, ok := m.Get(key); ok && !yield(key, v) {
				return
			}
		}
	}
}

// JSON returns the map as JSON with sorted keys.
func (m *Map) JSON() ([]byte, error) { return m.n.appendMapJSON(nil) }

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
		key := formatUint(d.id)
		part := n
		if v, ok := c.m.Get(key); ok {
			i, ok := integral(v)
			if !ok {
				return errorf(CodeInvalid, nil, "the counter's entry %s is not an integer", key)
			}
			part += i
		}
		if err := checkExact(part, n); err != nil {
			return err
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
