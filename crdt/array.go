package crdt

import "iter"

// Array is a shared list of values and shared types.
type Array struct{ n *node }

// Array returns the root array with a name.
func (d *Doc) Array(name string) *Array {
	return &Array{d.rootAs(name, typeArray)}
}

// Len returns the number of elements.
func (a *Array) Len() int { return int(a.n.length()) }

// Insert inserts values before index i, which must be at most the length.
func (a *Array) Insert(i int, values ...any) error {
	return a.n.edit(func(d *Doc) error {
		if err := a.n.checkRange(i, 0); err != nil {
			return err
		}
		left := a.n.place(uint64(i))
		for len(values) > 0 {
			it, taken, err := d.pack(values)
			if err != nil {
				return err
			}
			d.insert(a.n, left, it)
			left, values = it, values[taken:]
		}
		return nil
	})
}

// Append appends values.
func (a *Array) Append(values ...any) error { return a.Insert(a.Len(), values...) }

// pack returns an item with as many of the first values as one item can hold.
func (d *Doc) pack(values []any) (it *item, taken int, err error) {
	if _, ok := values[0].([]byte); ok {
		it, err = d.content(values[0])
		return it, 1, err
	}
	it = d.alloc()
	it.kind = kindAny
	var at []int
	for _, v := range values {
		if _, ok := v.([]byte); ok {
			break
		}
		if it.data, err = d.anyValue(it.data, v); err != nil {
			return nil, 0, err
		}
		at = append(at, len(it.data))
		taken++
	}
	if it.length = uint32(taken); taken > 1 {
		it.ends = &ends{at: at}
	}
	return it, taken, nil
}

// InsertMap inserts a new, empty map before index i.
func (a *Array) InsertMap(i int) (*Map, error) { return insertType[Map](a, i, typeMap) }

// InsertArray inserts a new, empty array before index i.
func (a *Array) InsertArray(i int) (*Array, error) { return insertType[Array](a, i, typeArray) }

// InsertText inserts a new, empty text before index i.
func (a *Array) InsertText(i int) (*Text, error) { return insertType[Text](a, i, typeText) }

func insertType[T ~struct{ n *node }](a *Array, i int, ref typeRef) (*T, error) {
	return newType[T](a.n, ref, func(it *item) error {
		if err := a.n.checkRange(i, 0); err != nil {
			return err
		}
		a.n.doc.insert(a.n, a.n.place(uint64(i)), it)
		return nil
	})
}

// Delete deletes count elements from index i on.
func (a *Array) Delete(i, count int) error {
	return a.n.edit(func(d *Doc) error {
		if err := a.n.checkRange(i, count); err != nil {
			return err
		}
		a.n.remove(uint64(i), uint64(count))
		return nil
	})
}

// Get returns an element, or its *[Map], *[Array] or *[Text].
func (a *Array) Get(i int) (any, bool) {
	if i < 0 || i >= a.Len() {
		return nil, false
	}
	it, offset := a.n.seek(uint64(i))
	return it.value(offset), true
}

// All yields the elements in order.
func (a *Array) All() iter.Seq2[int, any] {
	return func(yield func(int, any) bool) {
		i := 0
		for it := a.n.head; it != nil; it = it.right {
			if it.units() == 0 {
				continue
			}
			for k := range it.elements() {
				if !yield(i, it.value(k)) {
					return
				}
				i++
			}
		}
	}
}

// JSON returns the array as JSON; objects have sorted keys.
func (a *Array) JSON() ([]byte, error) { return a.n.appendJSON(nil, typeArray) }
