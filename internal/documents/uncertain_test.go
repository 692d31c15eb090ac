package documents_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/crdt/replica"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/testbed"
)

// Each edit is made once and acknowledged while the document begins one epoch after another.
func TestEditsAreMadeOnceAcrossEpochs(t *testing.T) {
	l := openLibrary(t, openBus(t))
	defer closeLibrary(t, l)
	ensure(t, l, "plan")
	const edits = 60
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range edits {
			c, err := l.EditDocument(t.Context(), "plan", []documents.Edit{{Op: documents.OpInsert, Path: []string{"list"}, Values: []any{fmt.Sprint(i)}}})
			if err != nil || !strings.Contains(string(c.Content), fmt.Sprintf("%q", fmt.Sprint(i))) {
				t.Errorf("edit %d: %v", i, err)
			}
		}
	}()
	for busy := true; busy; {
		if _, _, err := l.Compact(t.Context(), "plan"); err != nil {
			t.Error(err)
		}
		select {
		case <-ended:
			busy = false
		default:
		}
	}
	c, err := l.Document(t.Context(), "plan")
	if err != nil {
		t.Fatal(err)
	}
	want := make([]string, edits)
	for i := range want {
		want[i] = fmt.Sprintf("%q", fmt.Sprint(i))
	}
	if got := fmt.Sprintf(`{"list":[%s]}`, strings.Join(want, ",")); string(c.Content) != got {
		t.Errorf("the content is\n%s, want\n%s", c.Content, got)
	}
}

// The error of an edit that the store does not confirm says that the edit may have been made; the error of an edit
// that was not made does not.
func TestAnUnconfirmedEditIsReportedAsUncertain(t *testing.T) {
	server := testbed.StartNATS(t)
	b, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(server.URL())})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background()) //nolint:errcheck // the server was restarted
	l := openLibrary(t, b)
	d := ensure(t, l, "plan")
	seen := make(chan struct{}, 16)
	defer d.OnUpdate(func(replica.Update) { seen <- struct{}{} })()
	server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-seen; cancel() }()
	if err := d.Edit(ctx, set("k", 1)); documents.CodeOf(err) != documents.CodeUncertain || !errors.Is(err, context.Canceled) {
		t.Errorf("the edit returns %v", err)
	}
	if got := show(t, d); got != `{"m":{"k":1}}` {
		t.Errorf("the content is %s", got)
	}
	bad := []documents.Edit{{Op: documents.OpSet, Path: []string{"m"}, Value: 1}}
	if err := d.Change(t.Context(), bad); documents.CodeOf(err) != documents.CodeInvalid {
		t.Errorf("an invalid edit returns %v", err)
	}
	server.Start()
	if err := d.Durable(t.Context()); err != nil {
		t.Error(err)
	}
	closeLibrary(t, l)
	if _, err := l.EditDocument(t.Context(), "plan", nil); documents.CodeOf(err) != documents.CodeClosed {
		t.Errorf("after Close an edit returns %v", err)
	}
}

// The remedy of an uncertain edit tells agents to read the document before they repeat the edit.
func TestUncertaintyIsExplained(t *testing.T) {
	_, _, remedy := documents.Explain(&documents.Error{Code: documents.CodeUncertain, Message: "m"})
	if !strings.Contains(remedy, "read_document") || slices.Contains(strings.Fields(remedy), "Try") {
		t.Errorf("the remedy is %q", remedy)
	}
}
