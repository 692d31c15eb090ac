package crdt_test

import (
	"fmt"

	"github.com/parleyhub/parley/crdt"
)

// Two replicas edit concurrently, exchange updates and converge.
func Example() {
	mars, venus := crdt.New(crdt.Options{Client: 1}), crdt.New(crdt.Options{Client: 2})
	byMars, err := mars.Transact(nil, func() error { return mars.Array("todo").Append("dig", "measure") })
	if err != nil {
		fmt.Println(err)
		return
	}
	byVenus, err := venus.Transact(nil, func() error { return venus.Array("todo").Append("rest") })
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := venus.Apply(byMars, "mars"); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := mars.Apply(byVenus, "venus"); err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range []*crdt.Doc{mars, venus} {
		shown, err := d.JSON()
		fmt.Println(string(shown), err)
	}
	// Output:
	// {"todo":["dig","measure","rest"]} <nil>
	// {"todo":["dig","measure","rest"]} <nil>
}

// Maps, arrays and texts can be nested; a nested value is edited in place.
func ExampleMap_SetMap() {
	d := crdt.New(crdt.Options{})
	_, err := d.Transact(nil, func() error {
		owners, err := d.Map("plan").SetMap("owners")
		if err != nil {
			return err
		}
		if err := owners.Set("build", "mars"); err != nil {
			return err
		}
		notes, err := owners.SetText("notes")
		if err != nil {
			return err
		}
		return notes.Append("since May")
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if owners, ok := d.Map("plan").Get("owners"); ok {
		shown, err := owners.(*crdt.Map).JSON()
		fmt.Println(string(shown), err)
	}
	// Output: {"build":"mars","notes":"since May"} <nil>
}

// An observer is called once per transaction, with what changed and where.
func ExampleDoc_Observe() {
	d := crdt.New(crdt.Options{})
	cancel := d.Observe(func(c crdt.Change) {
		for _, t := range c.Types {
			for key, k := range t.Keys {
				fmt.Printf("%v: %s was %v and is %v (here: %v, by %v)\n", t.Path, key, k.Old, k.New, c.Local, c.Origin)
			}
		}
	})
	defer cancel()
	for _, status := range []string{"open", "done"} {
		if _, err := d.Transact("me", func() error { return d.Map("plan").Set("status", status) }); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// [plan]: status was <nil> and is open (here: true, by me)
	// [plan]: status was open and is done (here: true, by me)
}

// Undo reverts local edits and keeps concurrent edits of other replicas.
func ExampleDoc_NewUndo() {
	d, other := crdt.New(crdt.Options{Client: 1}), crdt.New(crdt.Options{Client: 2})
	undo := d.NewUndo(nil)
	defer undo.Close()
	if _, err := d.Transact(nil, func() error { return d.Text("notes").Append("mine ") }); err != nil {
		fmt.Println(err)
	}
	theirs, err := other.Transact(nil, func() error { return other.Text("notes").Append("theirs") })
	if err != nil {
		fmt.Println(err)
	}
	if _, err := d.Apply(theirs, nil); err != nil {
		fmt.Println(err)
	}
	fmt.Println(d.Text("notes"))
	if _, err := undo.Undo(); err != nil { // the returned update must be sent to the other replicas
		fmt.Println(err)
	}
	fmt.Println(d.Text("notes"))
	if _, err := undo.Redo(); err != nil {
		fmt.Println(err)
	}
	fmt.Println(d.Text("notes"))
	// Output:
	// mine theirs
	// theirs
	// mine theirs
}

// A snapshot has the whole state. A new replica loads it and requests what it lacks by its state vector.
func ExampleDoc_Snapshot() {
	d := crdt.New(crdt.Options{})
	if err := d.Map("plan").Set("status", "open"); err != nil {
		fmt.Println(err)
	}
	snapshot := d.Snapshot()
	if err := d.Map("plan").Set("status", "done"); err != nil {
		fmt.Println(err)
	}

	newcomer := crdt.New(crdt.Options{})
	if _, err := newcomer.Apply(snapshot, nil); err != nil {
		fmt.Println(err)
	}
	if _, err := newcomer.Apply(d.EncodeSince(newcomer.StateVector()), nil); err != nil {
		fmt.Println(err)
	}
	status, _ := newcomer.Map("plan").Get("status")
	fmt.Println(status)
	// Output: done
}
