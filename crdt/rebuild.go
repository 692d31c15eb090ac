package crdt

// Rebuild returns a new document with the same content and none of the history: no marks of what was
// deleted, and one client id. It shares nothing with d and must never be merged with
// it, or content doubles. It fails for XML and subdocuments, and where a root is used
// as several things.
func Rebuild(d *Doc, o Options) (*Doc, error) {
	fresh := New(o)
	// A document may be larger than one update may be.
	limits := fresh.limits
	fresh.limits.Update, fresh.limits.String, fresh.limits.AnyElements = 1<<30, 1<<30, 1<<30
	for _, name := range d.Roots() {
		if err := fresh.copyRoot(name, d); err != nil {
			return nil, err
		}
	}
	fresh.limits = limits
	return fresh, nil
}

func (d *Doc) copyRoot(name string, from *Doc) error {
	n := from.roots[name]
	if len(n.keys) > 0 && n.head != nil {
		return errorf(CodeInvalid, nil, "the root %q is a map and a list", name)
	}
	// Each root in a transaction of its own: the journal of one is kept until its end.
	_, err := d.Transact(nil, func() error {
		switch from.Shape(name) {
		case "map":
			return (&Map{n}).copyTo(d.Map(name))
		case "array":
			return (&Array{n}).copyTo(d.Array(name))
		case "text":
			return (&Text{n}).copyTo(d.Text(name))
		}
		return nil
	})
	return err
}

func (m *Map) copyTo(to *Map) error {
	for key, v := range m.All() {
		var err error
		switch v := v.(type) {
		case *Map:
			err = copied(v.copyTo)(to.SetMap(key))
		case *Array:
			err = copied(v.copyTo)(to.SetArray(key))
		case *Text:
			err = copied(v.copyTo)(to.SetText(key))
		case Opaque, Subdocument:
			err = errUncopied(v)
		default:
			err = to.Set(key, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *Array) copyTo(to *Array) error {
	var plain []any // that go in together
	flush := func() error {
		values := plain
		plain = nil
		if len(values) == 0 {
			return nil
		}
		return to.Append(values...)
	}
	for _, v := range a.All() {
		var err error
		switch v := v.(type) {
		case *Map:
			if err = flush(); err == nil {
				err = copied(v.copyTo)(to.InsertMap(to.Len()))
			}
		case *Array:
			if err = flush(); err == nil {
				err = copied(v.copyTo)(to.InsertArray(to.Len()))
			}
		case *Text:
			if err = flush(); err == nil {
				err = copied(v.copyTo)(to.InsertText(to.Len()))
			}
		case Opaque, Subdocument:
			err = errUncopied(v)
		default:
			plain = append(plain, v)
		}
		if err != nil {
			return err
		}
	}
	return flush()
}

func (t *Text) copyTo(to *Text) error {
	for _, r := range t.Runs() {
		var err error
		switch v := r.Insert.(type) {
		case string:
			err = to.InsertWith(to.Len(), v, r.Attributes)
		case *Map, *Array, *Text, Opaque, Subdocument:
			err = errUncopied(v)
		default:
			err = to.InsertEmbed(to.Len(), v, r.Attributes)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copied copies into a type that was just made.
func copied[T any](copyTo func(T) error) func(T, error) error {
	return func(to T, err error) error {
		if err != nil {
			return err
		}
		return copyTo(to)
	}
}

func errUncopied(v any) error {
	return errorf(CodeInvalid, nil, "a %T cannot be copied", v)
}
