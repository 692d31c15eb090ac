package ysync

import (
	"reflect"
	"testing"
	"time"
)

// Awareness follows the rules of y-protocols: a later clock, or null at the same clock, is news, once; only the connection
// that speaks of a client may go on to; and it ends with that connection, or when nothing is heard for 30 s.
func TestRulesOfAwareness(t *testing.T) {
	begin := time.Unix(1000, 0)
	a := awareness{known: map[uint64]*known{}}
	ada, bob := new(conn), new(conn)
	take := func(c *conn, client, clock uint64, state string, after time.Duration) (news []string) {
		for _, p := range a.update(c, []presence{{client, clock, []byte(state)}}, begin.Add(after)) {
			news = append(news, string(p.state))
		}
		return news
	}
	for i, c := range []struct {
		of    *conn
		clock uint64
		state string
		news  bool
	}{
		{ada, 0, "null", false}, // of nobody that is known
		{ada, 1, `"a"`, true},
		{ada, 1, `"b"`, false}, // the same clock
		{ada, 0, `"b"`, false}, // an earlier one
		{ada, 2, `"b"`, true},
		{bob, 3, `"forged"`, false},
		{bob, 2, "null", false},
		{ada, 2, "null", true},
		{ada, 2, "null", false}, // it is known
		{ada, 2, `"c"`, false},  // it has gone at that clock
		{bob, 3, `"b"`, true},   // it is back, over another connection
		{ada, 4, `"late"`, false},
	} {
		if news := take(c.of, 5, c.clock, c.state, 0); (len(news) == 1) != c.news {
			t.Fatalf("step %d: there is news: %v", i, news)
		}
	}
	take(ada, 6, 1, `"six"`, 20*time.Second)
	if gone := a.expire(begin.Add(29 * time.Second)); gone != nil {
		t.Errorf("after 29 s %v are forgotten", gone)
	}
	if gone := a.expire(begin.Add(30 * time.Second)); !reflect.DeepEqual(gone, []presence{{5, 3, []byte("null")}}) {
		t.Errorf("after 30 s %v are forgotten", gone)
	}
	if gone := a.leave(ada); !reflect.DeepEqual(gone, []presence{{6, 1, []byte("null")}}) || len(a.known) != 0 {
		t.Errorf("with its connection %v goes, %d are left", gone, len(a.known))
	}
}

// A client that takes nothing is cut off within bounds; one frame of any size goes.
func TestTheOutboxIsBounded(t *testing.T) {
	o := outbox{wake: make(chan struct{}, 1)}
	if !o.put(make([]byte, 2*maxOutBytes)) || o.put([]byte{1}) {
		t.Error("one large frame is all that goes")
	}
	o.sent()
	for i := range maxOut + 1 {
		if ok := o.put([]byte{1}); ok != (i < maxOut) {
			t.Fatalf("frame %d is taken: %v", i, ok)
		}
	}
	for range maxOut {
		<-o.wake
		if _, ok := o.first(); !ok {
			t.Fatal("it was woken for nothing")
		}
		o.sent()
	}
	if _, ok := o.first(); ok || o.bytes != 0 || len(o.wake) != 0 {
		t.Errorf("%d bytes are left", o.bytes)
	}
}

// Bounds, for tests.
const (
	MaxLarge   = maxLarge
	SmallFrame = smallFrame
)

// Decode reads a frame and what is in it, for tests.
func Decode(data []byte) {
	f, err := decodeFrame(data)
	if err == nil && f.kind == frameAwareness {
		if list, err := decodeAwareness(f.payload); err == nil {
			encodePresences(list)
		}
	}
}
