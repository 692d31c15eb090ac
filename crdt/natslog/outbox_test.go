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

// numbers are what would be sent next.
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

// What is in the log is held no longer, also while more waits.
func TestWhatIsStoredIsLetGo(t *testing.T) {
	o := new(outbox)
	for range 3 {
		o.put(message(0, 1))
	}
	array := o.queue
	o.confirm(0, 2)
	for i, x := range array {
		if held := x.message != nil; held != (i == 2) {
			t.Errorf("message %d is held: %v", i, held)
		}
	}
	if o.confirm(0, 3); o.queue != nil {
		t.Error("the array is held")
	}
}

// Nothing more is sent once the document is closed.
func TestNothingIsSentAfterTheEnd(t *testing.T) {
	o := new(outbox)
	o.put(message(0, 1))
	ended, end := context.WithCancel(t.Context())
	end()
	if first, _, err := o.next(ended); !errors.Is(err, context.Canceled) || first != nil {
		t.Errorf("%v, %v", first, err)
	}
}

// What waits is sent in entries that a server takes, in its order.
func TestEntriesHaveABound(t *testing.T) {
	o := new(outbox)
	if !stored(o) {
		t.Error("nothing was made, and it is not stored")
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
	o.confirm(0, 3) // once more is nothing
	if !stored(o) || o.unsent() || o.bytes != 0 {
		t.Errorf("all was confirmed, and %d bytes wait", o.bytes)
	}
	for range maxEntryMessages + 5 {
		o.put(message(0, 1))
	}
	if n := numbers(t, o); len(n) != maxEntryMessages {
		t.Errorf("an entry has %d messages", len(n))
	}
}

// While the server is away edits are refused beyond a bound. What channels bring beyond it is not kept, but left to a snapshot.
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
		t.Errorf("it has an entry: %v", err)
	}
	o.confirm(0, made)
	if n := numbers(t, o); len(n) != 1 || n[0] != made+1 {
		t.Errorf("then comes %v", n)
	}
}

// Who waits for what an epoch did not take waits for what was carried over, or hears that it was lost.
func TestFlushThroughEpochs(t *testing.T) {
	o := new(outbox)
	o.put(message(0, 1))
	o.hold()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := o.next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("something is sent to an epoch that has ended: %v", err)
	}
	o.put(message(1, 1))
	o.resume(1, false)
	if stored(o) {
		t.Error("what was carried over is not stored yet")
	}
	o.confirm(0, 2) // of the epoch before
	if stored(o) {
		t.Error("what was confirmed in the former epoch counts")
	}
	o.confirm(1, 2)
	if !stored(o) {
		t.Error("what was carried over is stored")
	}
	o.put(message(1, 1))
	o.resume(2, true)
	var lost *Error
	if err := o.flush(t.Context(), t.Context()); !errors.As(err, &lost) || lost.Code != CodeLost {
		t.Errorf("lost edits are told by %v", err)
	}
	o.put(message(2, 1))
	o.confirm(2, 4)
	if !stored(o) {
		t.Error("what is new is stored")
	}
	if _, _, err := o.next(ctx); err == nil {
		t.Error("there is something to send after the end")
	}
}
