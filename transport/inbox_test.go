package transport_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/transport"
)

func TestFramesShareMessagesUpToTheirSize(t *testing.T) {
	var c transport.Codec
	small, err := envelope.New("a", "b", envelope.Notification, strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	large, err := envelope.New("a", "b", envelope.Notification, strings.Repeat("x", 2*transport.MessageSize))
	if err != nil {
		t.Fatal(err)
	}
	var frames []transport.Frame
	for i := range 200 {
		frames = append(frames, transport.Frame{Kind: transport.Data, Seq: uint64(i), Envelope: small})
	}
	frames = append(frames, transport.Frame{Kind: transport.Data, Seq: 200, Envelope: large})
	for i := range transport.MaxFrames + 1 {
		frames = append(frames, transport.Frame{Kind: transport.Ack, Seq: uint64(i)})
	}
	data, ends, err := c.AppendMessages([]byte("before"), frames, c.MaxMessage())
	if err != nil {
		t.Fatal(err)
	}
	var back []transport.Frame
	begin := len("before")
	for _, end := range ends {
		got, err := c.Decode(nil, data[begin:end])
		if err != nil {
			t.Fatal(err)
		}
		if end-begin > transport.MessageSize && len(got) != 1 {
			t.Errorf("%d frames are in one message of %d bytes", len(got), end-begin)
		}
		back, begin = append(back, got...), end
	}
	if begin != len(data) || len(back) != len(frames) || len(ends) < 6 {
		t.Errorf("%d frames of %d in %d messages", len(back), len(frames), len(ends))
	}
	if _, _, err := c.AppendMessages(nil, frames, 1000); transport.CodeOf(err) != transport.CodeTooLarge {
		t.Errorf("a frame too large for the peer: %v", err)
	}
	if _, _, err := c.AppendMessages(nil, []transport.Frame{{Kind: 99}}, 1000); transport.CodeOf(err) != transport.CodeInvalid {
		t.Errorf("an unknown kind: %v", err)
	}
}

func TestInboxReturnsFramesBeforeTheEnd(t *testing.T) {
	done, broken := make(chan struct{}), errors.New("broken")
	b := transport.NewInbox(done, func() error { return broken })
	ack := func(seq uint64) []transport.Frame {
		return append(b.Spare(), transport.Frame{Kind: transport.Ack, Seq: seq})
	}
	if !b.Put(ack(1)) {
		t.Fatal("Put on an empty inbox fails")
	}
	got, err := b.Receive(t.Context())
	if err != nil || len(got) != 1 || got[0].Seq != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Receive(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if spare := b.Spare(); cap(spare) == 0 || len(spare) != 0 { // the slice of the first Receive
		t.Errorf("a slice of %d, %d", len(spare), cap(spare))
	}
	b.Put(ack(2))
	close(done)
	if !slices.ContainsFunc([]int{1, 2, 3}, func(int) bool { return !b.Put(ack(3)) }) { // the inbox has room for one
		t.Error("Put on a full inbox succeeds after the end")
	}
	if got, err = b.Receive(t.Context()); err != nil || got[0].Seq != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for range 3 { // the remaining frames, then the end
		_, err = b.Receive(t.Context())
	}
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	b.End()
	if _, err = b.Receive(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
