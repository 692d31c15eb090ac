package ysync

import (
	"reflect"
	"testing"
	"time"
)

// Awareness follows y-protocols: a later clock, or null at the same clock, is accepted once; only the connection
// that announced a client may update it; an entry ends with its connection or after 30 s without renewal.
func TestAwarenessRules(t *testing.T) {
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
		{ada, 0, "null", false}, // an unknown client
		{ada, 1, `"a"`, true},
		{ada, 1, `"b"`, false}, // the same clock
		{ada, 0, `"b"`, false}, // an earlier clock
		{ada, 2, `"b"`, true},
		{bob, 3, `"forged"`, false},
		{bob, 2, "null", false},
		{ada, 2, "null", true},
		{ada, 2, "null", false}, // already removed
		{ada, 2, `"c"`, false},  // removed at that clock
		{bob, 3, `"b"`, true},   // returns over another connection
		{ada, 4, `"late"`, false},
	} {
		if news := take(c.of, 5, c.clock, c.state, 0); (len(news) == 1) != c.news {
			t.Fatalf("step %d: accepted: %v", i, news)
		}
	}
	take(ada, 6, 1, `"six"`, 20*time.Second)
	if gone := a.expire(begin.Add(29 * time.Second)); gone != nil {
		t.Errorf("after 29 s %v expired", gone)
	}
	if gone := a.expire(begin.Add(30 * time.Second)); !reflect.DeepEqual(gone, []presence{{5, 3, []byte("null")}}) {
		t.Errorf("after 30 s %v expired", gone)
	}
	if gone := a.leave(ada); !reflect.DeepEqual(gone, []presence{{6, 1, []byte("null")}}) || len(a.known) != 0 {
		t.Errorf("the end of its connection removes %v, %d are left", gone, len(a.known))
	}
}

// These are the bounds, for tests.
const (
	MaxLarge   = maxLarge
	SmallFrame = smallFrame
)

// Decode decodes a frame and its content, for tests.
func Decode(data []byte) {
	f, err := decodeFrame(data)
	if err == nil && f.kind == frameAwareness {
		if list, err := decodeAwareness(f.payload); err == nil {
			encodePresences(list)
		}
	}
}
