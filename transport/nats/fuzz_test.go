package nats

import (
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/identity"
)

// FuzzMessages publishes arbitrary messages to an end: it buffers no more than it has granted.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("D\x00\x00\x00\x00\x00\x00\x00\x00hello"), []byte("F\x00\x00\x00\x00\x00\x00\x00\x05"))
	f.Add([]byte("W\x00\x00\x00\x00\x00\x20\x00\x00"), []byte("P\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("Aanswer"), []byte("R\x00\x00\x00\x00\x00\x00\x00\x00"))
	nc := new(nats.Conn)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := &stream{
			nc: nc, sub: new(nats.Subscription), answers: make(chan []byte, 1), granted: window, allowed: window,
			over: make(chan struct{}), done: make(chan struct{}), heard: time.Now(),
		}
		s.changed = sync.NewCond(&s.mu)
		s.handle(&nats.Msg{Data: first})
		s.handle(&nats.Msg{Data: second})
		held := 0
		for _, b := range s.queue {
			held += len(b)
		}
		if held != s.unread || held > window || s.granted < window {
			t.Errorf("the stream buffers %d bytes and counts %d", held, s.unread)
		}
	})
}

func FuzzParseAddress(f *testing.F) {
	f.Add(Address("", identity.FromSeed([32]byte{1}).Public()))
	f.Add("a.b.hub.")
	f.Fuzz(func(t *testing.T, text string) {
		prefix, key, err := ParseAddress(text)
		if err == nil && Address(prefix, key) != text {
			t.Errorf("%q became %q", text, Address(prefix, key))
		}
	})
}
