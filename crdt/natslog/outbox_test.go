package natslog

import (
	"context"
	"errors"
	"testing"

	"github.com/parleyhub/parley/crdt/replica"
)

func message(epoch uint64, size int) *replica.Message {
	return &replica.Message{Epoch: epoch, Payload: make([]byte, size)}
}

// numbers returns the numbers of the messages to be sent next.
func numbers(t *testing.T, o *outbox) (n []uint64) {
	t.Helper()
	first, _, err := o.next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range first {
		n = append(n, x.number)
	}
	return n
}

func stored(o *outbox) bool {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	return o.flush(done, context.Background()) == nil
}

// Stored messages are released, even while later ones wait.
func TestStoredMessagesAreReleased(t *testing.T) {
	o := new(outbox)
	for range 3 {
		o.put(message(0, 1))
	}
	array := o.queue
	o.confirm(0, 2)
	for i, x := range array {
		if held := x.message != nil; held != (i == 2) {
			t.Errorf("message %d is retained: %v", i, held)
		}
	}
	if o.confirm(0, 3); o.queue != nil {
		t.Error("the array is retained")
	}
}

// Nothing is sent after the document is closed.
func TestNothingIsSentAfterClose(t *testing.T) {
	o := new(outbox)
	o.put(message(0, 1))
	ended, end := context.WithCancel(t.Context())
	end()
	if first, _, err := o.next(ended); !errors.Is(err, context.Canceled) || first != nil {
		t.Errorf("%v, %v", first, err)
	}
}

// Waiting messages are sent in order, in entries within the server's limit.
func TestEntriesAreBounded(t *testing.T) {
	o := new(outbox)
	if !stored(o) {
		t.Error("an empty outbox has unstored edits")
	}
	for range 3 {
		o.put(message(0, 400<<10))
	}
	if n := numbers(t, o); len(n) != 2 || n[0] != 1 {
		t.Errorf("the first entry has %v", n)
	}
	o.confirm(0, 2)
	if n := numbers(t, o); len(n) != 1 || n[0] != 3 || stored(o) {
		t.Errorf("the second entry has %v", n)
	}
	o.confirm(0, 3)
	o.confirm(0, 3) // repeating it has no effect
	if !stored(o) || o.unsent() || o.bytes != 0 {
		t.Errorf("all messages are confirmed, but %d bytes wait", o.bytes)
	}
	for range maxEntryMessages + 5 {
		o.put(message(0, 1))
	}
	if n := numbers(t, o); len(n) != maxEntryMessages {
		t.Errorf("an entry has %d messages", len(n))
	}
}

// While the server is unreachable, edits are refused beyond a bound. Updates from channels beyond it are not
// queued: a snapshot includes them.
func TestTheBacklogIsBounded(t *testing.T) {
	o := new(outbox)
	for o.room() == nil {
		o.put(message(0, 1<<20))
	}
	var full *Error
	if err := o.room(); !errors.As(err, &full) || full.Code != CodeFull || o.bytes > maxBacklog+2<<20 {
		t.Errorf("%d bytes wait: %v", o.bytes, err)
	}
	for o.bytes > 0 {
		o.put(message(0, 1<<20))
	}
	made := o.made
	o.put(message(0, 1))
	first, _, err := o.next(t.Context())
	if err != nil || len(first) != 1 || first[0].message != nil || first[0].number != made {
		t.Fatalf("what is next is %+v, %v", first, err)
	}
	if _, err := entryBody(first); !errors.Is(err, errTooMany) {
		t.Errorf("the message has an entry: %v", err)
	}
	o.confirm(0, made)
	if n := numbers(t, o); len(n) != 1 || n[0] != made+1 {
		t.Errorf("the next entry is %v", n)
	}
}

// Flush across an epoch change waits for the edits that were carried over, or reports that they were lost.
func TestFlushThroughEpochs(t *testing.T) {
	o := new(outbox)
	o.put(message(0, 1))
	o.hold()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := o.next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a message is sent to an ended epoch: %v", err)
	}
	o.put(message(1, 1))
	o.resume(1, false)
	if stored(o) {
		t.Error("edits carried over count as stored too early")
	}
	o.confirm(0, 2) // of the former epoch
	if stored(o) {
		t.Error("a confirmation of the former epoch counts")
	}
	o.confirm(1, 2)
	if !stored(o) {
		t.Error("edits carried over are stored, but do not count")
	}
	o.put(message(1, 1))
	o.resume(2, true)
	var lost *Error
	if err := o.flush(t.Context(), t.Context()); !errors.As(err, &lost) || lost.Code != CodeLost {
		t.Errorf("lost edits are reported by %v", err)
	}
	o.put(message(2, 1))
	o.confirm(2, 4)
	if !stored(o) {
		t.Error("new edits count as stored too early")
	}
	if _, _, err := o.next(ctx); err == nil {
		t.Error("a message is left to send after the end")
	}
}
