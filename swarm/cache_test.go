package swarm

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// The cache of sessions led by other coordinators is bounded in number and in bytes.
func TestSessionCacheIsBounded(t *testing.T) {
	for name, test := range map[string]struct{ swarms, text, most int }{
		"number": {swarms: maxCached + 50, text: 10, most: maxCached},
		"bytes":  {swarms: 40, text: 50 << 10, most: 20},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			j := new(MemoryJournal)
			f := newSessionCache(j)
			f.most = 20 * (51 << 10)
			description := strings.Repeat("x", test.text)
			for i := range test.swarms {
				id := fmt.Sprint("s", i)
				e := entry{Version: entryVersion, Events: []event{{Created: &created{ID: id, Plan: Plan{TaskDescription: description}}}}}
				data, err := json.Marshal(&e)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := j.Append(ctx, id, 0, data); err != nil {
					t.Fatal(err)
				}
				if s, err := f.session(ctx, id); err != nil || s.ID != id {
					t.Fatalf("%v, %q", err, s.ID)
				}
			}
			if n := len(f.byID); n > test.most || n < test.most/2 || f.bytes > f.most {
				t.Errorf("%d swarms with %d bytes are cached", n, f.bytes)
			}
			if s, err := f.session(ctx, "s0"); err != nil || s.ID != "s0" { // read again
				t.Errorf("%v, %q", err, s.ID)
			}
		})
	}
}
