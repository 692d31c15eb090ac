package crdt_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/parleyhub/parley/crdt"
)

// Wrong use of the API returns an error and changes nothing.
func TestMisuseIsAnError(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	if err := d.Text("t").Append("x"); err != nil {
		t.Fatal(err)
	}
	parsed := func() *crdt.Update {
		u, err := crdt.ParseUpdate(d.Snapshot(), crdt.LiveLimits())
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	used := parsed()
	if _, err := d.ApplyUpdate(used, nil); err != nil {
		t.Fatal(err)
	}
	succeeded, s, err := crdt.Succeed(d, crdt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"nil applied":       func() error { _, err := d.ApplyUpdate(nil, nil); return err },
		"applied twice":     func() error { _, err := d.ApplyUpdate(used, nil); return err },
		"nil admitted":      func() error { return d.Admit(nil, crdt.Sender{}) },
		"admitted after":    func() error { return d.Admit(used, crdt.Sender{}) },
		"nil succeeded":     func() error { _, _, err := crdt.Succeed(nil, crdt.Options{}); return err },
		"carried to nobody": func() error { _, err := s.Carry(parsed(), nil); return err },
		"carried to itself": func() error { _, err := s.Carry(parsed(), d); return err },
		"nil carried":       func() error { _, err := s.Carry(nil, succeeded); return err },
		"apply in an edit": func() error {
			_, err := d.Transact(nil, func() error { _, err := d.Apply(d.Snapshot(), nil); return err })
			return err
		},
		"succeed in an edit": func() error {
			_, err := d.Transact(nil, func() error { _, _, err := crdt.Succeed(d, crdt.Options{}); return err })
			return err
		},
		"a type as a value": func() error { return d.Map("m").Set("k", d.Array("l")) },
	} {
		if err := f(); crdt.CodeOf(err) != crdt.CodeInvalid {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if _, err := d.Apply(nil, nil); crdt.CodeOf(err) != crdt.CodeDeserialization {
		t.Errorf("nil bytes: the error is %v", err)
	}
	if res, err := d.Apply(d.Snapshot(), nil); err != nil || res.Update != nil {
		t.Errorf("applying its own state returns %+v, %v", res, err)
	}
	if got := d.Text("t").String(); got != "x" || d.Check() != nil {
		t.Errorf("the text is %q, %v", got, d.Check())
	}
}

// An observer may try to edit, apply or panic without damage; one that cancels itself is not called again.
func TestMisbehavingObservers(t *testing.T) {
	d := crdt.New(crdt.Options{Client: 1})
	var errs []error
	var cancel func()
	cancel = d.Observe(func(crdt.Change) {
		errs = append(errs, d.Map("m").Set("k", 1))
		_, err := d.Apply([]byte{0, 0}, nil)
		errs = append(errs, err)
		_, _, err = crdt.Succeed(d, crdt.Options{})
		errs = append(errs, err)
		cancel()
	})
	for range 2 {
		if err := d.Text("t").Append("a"); err != nil {
			t.Fatal(err)
		}
	}
	if len(errs) != 3 {
		t.Errorf("the observer was called %d times", len(errs)/3)
	}
	for _, err := range errs {
		if crdt.CodeOf(err) != crdt.CodeInvalid {
			t.Errorf("inside an observer the error is %v", err)
		}
	}
	stop := d.Observe(func(crdt.Change) { panic("an observer's own") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Transact did not pass the panic on")
			}
		}()
		_ = d.Text("t").Append("b") // the observer panics after the edit
	}()
	stop()
	undo := d.NewUndo(nil)
	undo.Close()
	if u, err := undo.Undo(); u != nil || err != nil {
		t.Errorf("Undo after Close returns %x, %v", u, err)
	}
	if err := errors.Join(d.Text("t").Append("c"), d.Check()); err != nil || d.Text("t").String() != "aabc" {
		t.Errorf("the text is %q, %v", d.Text("t"), err)
	}
}

func TestANegativeIndexIsReportedAsNegative(t *testing.T) {
	d := crdt.New(crdt.Options{})
	a, x := d.Array("a"), d.Text("t")
	for want, f := range map[string]func() error{
		"the index -1 is negative": func() error { return a.Insert(-1, 1) },
		"the index -2 is negative": func() error { _, err := a.InsertMap(-2); return err },
		"the index -3 is negative": func() error { return x.Insert(-3, "x") },
		"the index -4 is negative": func() error { return x.Delete(-4, 1) },
		"the index -5 is negative": func() error { return a.Delete(-5, 1) },
		"the count -6 is negative": func() error { return x.Format(0, -6, crdt.Attributes{"b": true}) },
		"the count -7 is negative": func() error { return a.Delete(0, -7) },
	} {
		if err := f(); crdt.CodeOf(err) != crdt.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
