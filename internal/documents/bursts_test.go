package documents_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/internal/bus"
)

var bursts = flag.Int("bursts", 1, "bursts of 10,000 edits in TestABurstReachesEveryPage")

// page is a client of y-websocket with a copy of the document.
type page struct {
	t   *testing.T
	ws  *websocket.Conn
	doc *crdt.Doc
}

func openPage(t *testing.T, url string) *page {
	t.Helper()
	ws, answer, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body // the connection's
	ws.SetReadLimit(-1)
	t.Cleanup(func() { ws.CloseNow() })
	return &page{t, ws, crdt.New(crdt.Options{})}
}

// send sends a sync message: 0 asks for what a state vector lacks, 2 is an update.
func (p *page) send(kind byte, payload []byte) {
	p.t.Helper()
	frame := append(binary.AppendUvarint([]byte{0, kind}, uint64(len(payload))), payload...)
	if err := p.ws.Write(p.t.Context(), websocket.MessageBinary, frame); err != nil {
		p.t.Fatal(err)
	}
}

// ask asks for the whole document and receives it: from then on all changes arrive.
func (p *page) ask() {
	p.t.Helper()
	p.send(0, crdt.StateVector{}.Encode())
	for kind := byte(0); kind != 1; {
		var err error
		if kind, err = p.receive(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
	}
}

// receive applies the next message and returns its kind.
func (p *page) receive(ctx context.Context) (kind byte, err error) {
	_, frame, err := p.ws.Read(ctx)
	if err != nil {
		return 0, err
	}
	if frame[0] != 0 {
		return 0, nil // of the presence of others
	}
	_, n := binary.Uvarint(frame[2:])
	if frame[1] != 0 {
		_, err = p.doc.Apply(frame[2+n:], nil)
	}
	return frame[1], err
}

// until receives until the page's copy is up to date. A page misses changes if nothing arrives for long: how long all of them
// take says nothing, as other programs may leave this one little time.
func (p *page) until(upToDate func() bool) error {
	for !upToDate() {
		ctx, cancel := context.WithTimeout(p.t.Context(), 3*time.Minute)
		_, err := p.receive(ctx)
		cancel()
		if err != nil {
			return fmt.Errorf("a page misses changes: %w", err)
		}
	}
	return nil
}

// drain reads without looking, so that the server can write.
func (p *page) drain() {
	for {
		if _, _, err := p.ws.Read(context.Background()); err != nil {
			return
		}
	}
}

// The pages of a document have all of a burst without a later edit, also the one that reads nothing until its end.
//
//	go test ./internal/documents -run ABurstReaches -timeout 0 -args -bursts 1000
func TestABurstReachesEveryPage(t *testing.T) {
	for _, durability := range []bus.Durability{bus.DurabilityCommit, bus.DurabilityFast} {
		t.Run(string(durability), func(t *testing.T) { testBursts(t, durability) })
	}
}

func testBursts(t *testing.T, durability bus.Durability) {
	b, err := bus.Open(t.Context(), bus.Config{DataDir: t.TempDir(), Durability: durability})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	l := openLibrary(t, b)
	defer closeLibrary(t, l)
	rooms := l.Rooms()
	defer rooms.Close()
	mux := http.NewServeMux()
	mux.Handle("/documents/{name}", rooms)
	server := httptest.NewServer(mux)
	defer server.Close()
	const perDocument = 3 // bursts: after some more the hub begins a new epoch, and pages open the document again
	for n := 0; n < *bursts; n += perDocument {
		name := "burst" + strconv.Itoa(n)
		burstsInto(t, "ws"+strings.TrimPrefix(server.URL, "http")+"/documents/"+name, min(perDocument, *bursts-n))
		reopened := ensure(t, l, name)
		if err := reopened.Durable(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n%60 == 57 {
			t.Logf("%d bursts, none incomplete", min(n+perDocument, *bursts))
		}
	}
}

func burstsInto(t *testing.T, url string, bursts int) {
	const edits = 10_000
	writer, reader, late := openPage(t, url), openPage(t, url), openPage(t, url)
	writer.doc.OnUpdate(func(update []byte, _ any, local bool) {
		if local {
			writer.send(2, update)
		}
	})
	reader.ask()
	late.ask()
	var reading sync.WaitGroup
	reading.Go(writer.drain)
	for burst := range bursts {
		last := float64((burst+1)*edits - 1)
		read := make(chan error, 1)
		reading.Go(func() {
			read <- reader.until(func() bool {
				got, _ := reader.doc.Map("m").Get("999")
				return got == last
			})
		})
		for i := range edits {
			if err := writer.doc.Map("m").Set(strconv.Itoa(i%1000), float64(burst*edits+i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		for _, p := range []*page{reader, late} {
			if err := p.until(func() bool { return reflect.DeepEqual(p.doc.StateVector(), writer.doc.StateVector()) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, p := range []*page{writer, reader, late} {
		p.ws.CloseNow()
	}
	reading.Wait()
}
