package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/parleyhub/parley/crdt"
	"github.com/parleyhub/parley/crdt/ysync"
)

const (
	// burst is how many edits are written without a pause.
	burst = 10_000
	// burstPatience is how long the reader of a burst waits for the next edit before the burst counts as incomplete.
	burstPatience = 5 * time.Second
	// fewBursts are made where no row before has made any.
	fewBursts = 3
)

// editor is a server of shared documents.
type editor struct {
	name  string
	start func() (url string, pid int, err error)

	bursts, incomplete int // of this run
}

// documentRows are edits of a document by one page that others read, over the protocol of y-websocket. Every reader has the edit
// when the figure is taken.
func (r *rig) documentRows() []row {
	var ours, peers []*editor
	for _, of := range []struct {
		name string
		hub  func() (*hub, error)
	}{{"parley commit", r.commit}, {"parley fast", r.fast}} {
		ours = append(ours, &editor{name: of.name, start: func() (string, int, error) {
			h, err := of.hub()
			if err != nil {
				return "", 0, err
			}
			return strings.Replace(h.url, "http", "ws", 1) + "/documents/", h.pid, nil
		}})
	}
	for _, store := range []bool{false, true} {
		name := "@y/websocket-server in memory"
		if store {
			name = "@y/websocket-server with y-leveldb"
		}
		server := sync.OnceValues(func() (server, error) { return r.startYWebsocket(store) })
		peers = append(peers, &editor{name: name, start: func() (string, int, error) {
			s, err := server()
			return s.url, s.pid, err
		}})
	}
	each := func(of []*editor, run func(e *editor) func(context.Context, time.Duration) (float64, error)) []contender {
		var all []contender
		for _, e := range of {
			all = append(all, contender{e.name, run(e)})
		}
		return all
	}
	work := func(name, unit string, less bool, run func(e *editor) func(context.Context, time.Duration) (float64, error)) row {
		return row{name: name, unit: unit, less: less, ours: each(ours, run), peers: each(peers, run)}
	}
	latency := func(readers int) func(e *editor) func(context.Context, time.Duration) (float64, error) {
		return func(e *editor) func(context.Context, time.Duration) (float64, error) {
			return r.sampled(e.name, 50, func() (func(context.Context) (time.Duration, error), error) {
				d, err := r.open(e, readers)
				if err != nil {
					return nil, err
				}
				return d.edit, nil
			}).run
		}
	}
	bursts := work("incomplete bursts of 10,000 edits", "", true, func(e *editor) func(context.Context, time.Duration) (float64, error) {
		return func(ctx context.Context, _ time.Duration) (float64, error) { return r.incompleteBursts(ctx, e) }
	})
	bursts.most = 1
	return []row{
		work("document edit to 1 reader, p50", "ms", true, latency(1)),
		work("document edit to 50 readers, p50", "ms", true, latency(50)),
		work("document edit to 50 readers, processor time", "ms", true, func(e *editor) func(context.Context, time.Duration) (float64, error) {
			return r.processorTimeOfEdits(e, 50)
		}),
		work("document edits in a burst of 10,000", "/s", false, func(e *editor) func(context.Context, time.Duration) (float64, error) {
			return func(ctx context.Context, _ time.Duration) (float64, error) { return r.burst(ctx, e) }
		}),
		bursts,
	}
}

// server is a running program.
type server struct {
	url string
	pid int
}

// startYWebsocket starts a y-websocket server that ends with the rig.
func (r *rig) startYWebsocket(store bool) (server, error) {
	modules, err := r.peers()
	if err != nil {
		return server{}, err
	}
	node, err := r.node()
	if err != nil {
		return server{}, err
	}
	port, err := freePort()
	if err != nil {
		return server{}, err
	}
	env := append(os.Environ(), "HOST=127.0.0.1", fmt.Sprint("PORT=", port))
	if store {
		dir, err := os.MkdirTemp(r.dir, "leveldb")
		if err != nil {
			return server{}, err
		}
		env = append(env, "YPERSISTENCE="+dir)
	}
	cmd, err := r.run(env, node, modules+"/node_modules/@y/websocket-server/src/server.js")
	if err != nil {
		return server{}, err
	}
	s := server{fmt.Sprintf("ws://127.0.0.1:%d/", port), cmd.Process.Pid}
	return s, r.await(s.url, func(ctx context.Context) error {
		ws, err := dial(ctx, s.url+"ready")
		if err == nil {
			err = ws.CloseNow()
		}
		return err
	})
}

func dial(ctx context.Context, url string) (*websocket.Conn, error) {
	var subprotocols []string
	if strings.Contains(url, "/documents/") {
		subprotocols = []string{ysync.Subprotocol}
	}
	ws, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: subprotocols})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(64 << 20)
	return ws, nil
}

// page is a connection that reads a document.
type page struct {
	ws      *websocket.Conn
	updates chan []byte // of others
	failed  error       // set before updates is closed
}

// The first bytes of a frame: a message of the synchronization, and its kind.
const (
	syncMessage = 0
	vector      = 0
	state       = 1
	update      = 2
)

// openPage connects a page, which has what the document had when it returns.
func (r *rig) openPage(url string) (*page, error) {
	ws, err := dial(r.ctx, url)
	if err != nil {
		return nil, err
	}
	p := &page{ws: ws, updates: make(chan []byte, burst)}
	loaded := make(chan struct{})
	go p.read(r.ctx, loaded)
	if err := ws.Write(r.ctx, websocket.MessageBinary, []byte{syncMessage, vector, 1, 0}); err != nil {
		return nil, err
	}
	select {
	case <-loaded:
		return p, nil
	case <-time.After(startTimeout):
		return nil, errors.New("the server does not send its state")
	}
}

// read reads what the server sends until the connection ends.
func (p *page) read(ctx context.Context, loaded chan struct{}) {
	defer close(p.updates)
	for {
		_, data, err := p.ws.Read(ctx)
		if err != nil {
			p.failed = err
			return
		}
		if len(data) < 3 || data[0] != syncMessage {
			continue
		}
		_, n := binary.Uvarint(data[2:])
		switch payload := data[2+max(n, 0):]; data[1] {
		case vector:
			if err := p.ws.Write(ctx, websocket.MessageBinary, []byte{syncMessage, state, 2, 0, 0}); err != nil {
				p.failed = err
				return
			}
		case state:
			select {
			case <-loaded:
			default:
				close(loaded)
			}
		case update:
			p.updates <- payload
		}
	}
}

// next returns the next update.
func (p *page) next(patience time.Duration) ([]byte, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case u, open := <-p.updates:
		if !open {
			return nil, p.failed
		}
		return u, nil
	case <-timer.C:
		return nil, errLate
	}
}

var errLate = errors.New("an edit does not arrive")

// document is a room with one page that writes and others that read.
type document struct {
	doc     *crdt.Doc
	writer  *page
	readers []*page
}

var rooms int

// open opens a new document with its pages until the end of the row.
func (r *rig) open(e *editor, readers int) (*document, error) {
	url, _, err := e.start()
	if err != nil {
		return nil, err
	}
	rooms++
	d := &document{doc: crdt.New(crdt.Options{})}
	for i := range readers + 1 {
		p, err := r.openPage(fmt.Sprint(url, "room-", rooms))
		if err != nil {
			return nil, err
		}
		r.afterRow(func() { _ = p.ws.CloseNow() }) // the server may have closed it
		if i == 0 {
			d.writer = p
		} else {
			d.readers = append(d.readers, p)
		}
	}
	return d, nil
}

// frame appends a character and returns the frame with the update.
func (d *document) frame() ([]byte, error) {
	u, err := d.doc.Transact(nil, func() error { return d.doc.Text("t").Append("x") })
	return append(binary.AppendUvarint([]byte{syncMessage, update}, uint64(len(u))), u...), err
}

// edit makes one edit and returns how long it took until every reader had it.
func (d *document) edit(ctx context.Context) (time.Duration, error) {
	frame, err := d.frame()
	if err != nil {
		return 0, err
	}
	for _, p := range d.readers {
		if len(p.updates) > 0 {
			return 0, errors.New("a reader got the edit before in several updates") // the first of which was taken for it
		}
	}
	began := time.Now()
	if err := d.writer.ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
		return 0, err
	}
	for _, p := range d.readers {
		if _, err := p.next(burstPatience); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// processorTimeOfEdits returns the server's processor time for an edit, in ms.
func (r *rig) processorTimeOfEdits(e *editor, readers int) func(context.Context, time.Duration) (float64, error) {
	opened := sync.OnceValues(func() (*document, error) { return r.open(e, readers) })
	return func(ctx context.Context, slice time.Duration) (float64, error) {
		d, err := opened()
		if err != nil {
			return 0, err
		}
		_, pid, err := e.start()
		if err != nil {
			return 0, err
		}
		before, err := processorTimeOf(pid)
		if err != nil {
			return 0, err
		}
		edits := 0
		for began := time.Now(); edits < 100 || time.Since(began) < slice; edits++ {
			if _, err := d.edit(ctx); err != nil {
				return 0, err
			}
		}
		after, err := processorTimeOf(pid)
		return (after - before).Seconds() * 1e3 / float64(edits), err
	}
}

// clockTick is the unit of processor times in /proc.
const clockTick = 10 * time.Millisecond

// processorTimeOf returns the processor time that a process has had.
func processorTimeOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, absent("the processor time of processes is read from /proc")
	}
	_, rest, _ := bytes.Cut(stat, []byte(") ")) // behind the name
	fields := bytes.Fields(rest)
	var user, system int64
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %s", pid, stat)
	}
	if _, err := fmt.Sscan(string(fields[11])+" "+string(fields[12]), &user, &system); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * clockTick, nil
}

// burst writes many edits to one reader and returns the edits a second, until the reader has all or misses some.
func (r *rig) burst(ctx context.Context, e *editor) (float64, error) {
	d, err := r.open(e, 1)
	if err != nil {
		return 0, err
	}
	frames := make([][]byte, burst)
	for i := range frames {
		if frames[i], err = d.frame(); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	wrote := make(chan error, 1)
	go func() {
		for _, frame := range frames {
			if err := d.writer.ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	replica := crdt.New(crdt.Options{})
	for replica.Text("t").Len() < burst {
		u, err := d.readers[0].next(burstPatience)
		if errors.Is(err, errLate) {
			break
		}
		if err == nil {
			_, err = replica.Apply(u, nil)
		}
		if err != nil {
			return 0, errors.Join(err, d.writer.ws.CloseNow(), <-wrote)
		}
	}
	took := time.Since(began)
	if err := <-wrote; err != nil {
		return 0, err
	}
	read := replica.Text("t").Len()
	e.bursts++
	if read < burst {
		e.incomplete++
	}
	return float64(read) / took.Seconds(), nil
}

// incompleteBursts returns how many of the bursts of the row before did not arrive as a whole.
func (r *rig) incompleteBursts(ctx context.Context, e *editor) (float64, error) {
	for e.bursts < fewBursts {
		if _, err := r.burst(ctx, e); err != nil {
			return 0, err
		}
	}
	return float64(e.incomplete), nil
}
