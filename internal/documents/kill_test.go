package documents_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

var (
	killEdits = flag.Int("kill-edits", 30, "edits of each client while the hub is killed; `make soak` has 1000")
	killSeed  = flag.Uint64("kill-seed", 0, "seed of the kills' moments; 0 takes a new one")
)

// killClients is the number of clients that edit concurrently, killDocuments the number of documents.
const (
	killClients   = 10
	killDocuments = 3
)

// written records the edits of a client by what the hub answered.
type written struct {
	acknowledged []string // these must be stored once
	unknown      []string // the hub was killed before it answered: these may be stored, at most once
}

// The hub is killed at random moments while ten clients edit three documents, which are compacted from time to
// time. Every acknowledged edit is stored once, no edit is duplicated or partial, and each document opens, can be
// edited and is unchanged after another start.
func TestKilledHubsKeepAcknowledgedEdits(t *testing.T) {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-kill-edits=%d -kill-seed=%d", *killEdits, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	hub := nettest.NewProcess(t)
	hub.Start(t)

	var wg sync.WaitGroup
	var done atomic.Int64
	ledgers := make([]written, killClients)
	for i := range ledgers {
		wg.Go(func() { ledgers[i] = editThroughKills(t, hub, i, &done) })
	}
	clients := make(chan struct{})
	go func() { wg.Wait(); close(clients) }()

	var compactions sync.WaitGroup
	kills, total := 0, int64(killClients**killEdits)
	for next := total / 20; ; next += 1 + total/20 + random.Int64N(1+total/10) {
		for running := true; running && done.Load() < next; {
			select {
			case <-clients:
				running = false
			case <-time.After(time.Duration(1+random.IntN(5)) * time.Millisecond): // during some operation
			}
		}
		if done.Load() >= total {
			break
		}
		if hub.Kill() {
			kills++
		}
		hub.Start(t)
		if kills%2 == 0 { // the next kill may interrupt the compaction
			name := fmt.Sprint("doc", kills%killDocuments)
			compactions.Go(func() { compact(hub, name) })
		}
	}
	<-clients
	compactions.Wait()
	if kills < 3 {
		t.Errorf("the hub was killed only %d times", kills)
	}
	t.Logf("%d kills", kills)
	first := judge(t, hub, ledgers)
	hub.Kill()
	hub.Start(t)
	if again := judge(t, hub, ledgers); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("after another start the documents are %v; before they were %v", again, first)
	}
}

// editThroughKills makes the edits of one client. Each writes the same value into a list, a map and a text.
func editThroughKills(t *testing.T, hub nettest.HubProcess, number int, done *atomic.Int64) (w written) {
	var c *client.Client
	defer func() {
		if c != nil {
			c.Close()
		}
	}()
	for i := range *killEdits {
		value := fmt.Sprintf("<%d.%d>", number, i)
		edits := []documents.Edit{
			{Op: documents.OpInsert, Path: []string{"list"}, Values: []any{value}},
			{Op: documents.OpSet, Path: []string{"map", value}, Value: true},
			{Op: documents.OpText, Path: []string{"text"}, Text: value},
			{Op: documents.OpIncrement, Path: []string{"count"}},
		}
		for sent := false; !sent; {
			var err error
			if c == nil {
				if c, err = hub.Client(t.Context()); err != nil {
					c = nil
					select {
					case <-time.After(5 * time.Millisecond): // the hub is restarting
					case <-t.Context().Done():
						return w
					}
					continue
				}
			}
			sent = true
			if _, err = c.EditDocument(t.Context(), fmt.Sprint("doc", i%killDocuments), edits); err == nil {
				w.acknowledged = append(w.acknowledged, value)
			} else {
				w.unknown = append(w.unknown, value)
				c.Close()
				c = nil
			}
		}
		done.Add(1)
	}
	return w
}

// compact begins a new epoch; a kill may interrupt it.
func compact(hub nettest.HubProcess, document string) {
	c, err := hub.Client(context.Background())
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.CompactDocument(context.Background(), document) // it may fail, but the document must stay valid
}

// judge compares the documents with the answers that clients received, and returns the documents' versions.
func judge(t *testing.T, hub nettest.HubProcess, ledgers []written) (versions []string) {
	t.Helper()
	c, err := hub.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inList, inMap, inText := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range killDocuments {
		d, err := c.Document(t.Context(), fmt.Sprint("doc", i))
		if err != nil {
			t.Fatal(err)
		}
		var shown struct {
			List  []string
			Map   map[string]bool
			Text  string
			Count map[string]int
		}
		if err := json.Unmarshal(d.Content, &shown); err != nil {
			t.Fatalf("%v: %s", err, d.Content)
		}
		for _, value := range shown.List {
			inList[value]++
		}
		for value := range shown.Map {
			inMap[value]++
		}
		for value, n := range splitMarks(shown.Text) {
			inText[value] += n
		}
		counted := 0
		for _, n := range shown.Count {
			counted += n
		}
		if counted != len(shown.List) || len(shown.Map) != len(shown.List) {
			t.Errorf("document %d has %d values, %d keys and a count of %d: edits are partial", i, len(shown.List), len(shown.Map), counted)
		}
		versions = append(versions, d.Version)
	}
	unknown := 0
	for _, w := range ledgers {
		for _, value := range w.acknowledged {
			if inList[value] != 1 || inMap[value] != 1 || inText[value] != 1 {
				t.Errorf("%s was acknowledged and is there %d times, in the map %d, in the text %d", value, inList[value], inMap[value], inText[value])
			}
		}
		for _, value := range w.unknown {
			if n := inList[value]; n > 1 || n != inMap[value] || n != inText[value] {
				t.Errorf("%s is there %d times, in the map %d, in the text %d", value, n, inMap[value], inText[value])
			}
		}
		unknown += len(w.unknown)
	}
	t.Logf("%d edits are stored, %d of them unacknowledged", len(inList), unknown)
	return versions
}

// splitMarks counts the values "<…>" in a text.
func splitMarks(text string) map[string]int {
	found := map[string]int{}
	start := 0
	for i, r := range text {
		switch r {
		case '<':
			start = i
		case '>':
			found[text[start:i+1]]++
		}
	}
	return found
}
