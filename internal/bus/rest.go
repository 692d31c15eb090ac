package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"
)

// A connection that nobody uses costs its hub some 60 KB. A joined Bus can give it up and take it again, below the NATS
// client, which does not notice: it stays connected, and its subscriptions are made again. What the client publishes takes
// the connection again first. Meanwhile a Resting keeps the right to connect, and the hub watches for what concerns the
// process.

// Rest has a joined Bus give up its connection while nothing uses it.
type Rest struct {
	// After is how long nothing may have used the connection before; the first time a tenth of it: many processes have nothing to do after
	// their start.
	After time.Duration
	// Ask requests the rest from the hub. An error of CodeUnsupported is not asked again.
	Ask func(ctx context.Context, user string) (Resting, error)
	// Heartbeat is the subject of messages that are no use of the connection: meanwhile Resting.Beat replaces them.
	Heartbeat string
	// Failed is the subject on which the hub answers a heartbeat that failed.
	Failed string
	// News is the subject that the hub watches meanwhile. After each rest its subscribers get an empty message, since they
	// may have missed others.
	News string
}

// Resting is a rest that the hub has granted. It is safe for concurrent use, except for Wait. After an error the rest is over, and the client
// connects anew.
type Resting interface {
	// Beat sends the hub a heartbeat. It does not wait until that is written.
	Beat() error
	// Wake requests the end of the rest. It does not wait for it.
	Wake() error
	// Wait waits for the end of the rest, which the hub may also decide, or for Close. A Grant that has expired, such as the zero one, is
	// replaced by a new one. beaten is false if a heartbeat failed.
	Wait() (g Grant, beaten bool, err error)
	// Close gives up the rest, with the right to connect unless it has ended. It is idempotent.
	Close() error
}

type restPhase int

const (
	inUse   restPhase = iota
	fencing           // the hub has granted a rest, and what it sent before is awaited
	resting           // there is no connection
	waking            // there will be one again
)

const (
	// fenceTimeout is how long the hub may take to answer before a rest.
	fenceTimeout = 2 * time.Second
	// wakeTimeout is how long a rest's end waits for a new Grant. Nobody waits for a lock meanwhile, see grantTimeout.
	wakeTimeout = 5 * time.Second
	// answerTime is how long a request counts as one that waits for its answer.
	answerTime = requestTimeout
	// maxHeld bounds what waits to be written, in bytes. Beyond it a write blocks.
	maxHeld = 4 << 20
)

// restConn is a connection that can rest. Its user is one NATS client, with one reader and one writer at a time.
type restConn struct {
	rest    *Rest
	hub     *hubDialer
	answers string // prefix of the subjects of answers

	writing sync.Mutex // held by whoever writes in use

	mu      sync.Mutex
	changed sync.Cond
	phase   restPhase
	conn    net.Conn // nil while resting and waking
	err     error    // why it has ended
	timer   *time.Timer
	after   time.Duration // see Rest.After
	used    time.Time
	resting Resting
	fenced  bool      // the answer to the PING before a rest is yet to come
	fence   chan bool // receives whether the rest has begun
	held    []byte    // to be written at the end of fencing and waking
	made    []byte    // to be read, in place of what the hub would have sent
	in, out frames
	connect []byte               // the control line of the client's login
	greeted bool                 // the login was answered
	subs    map[string]string    // the control lines of the subscriptions, by their ids
	replies map[string]time.Time // of requests that wait for their answers
	pings   int                  // that wait for their answers
}

func newRestConn(conn net.Conn, rest *Rest, hub *hubDialer, answers string) *restConn {
	c := &restConn{rest: rest, hub: hub, answers: answers, conn: conn, after: rest.After / 10, used: time.Now(), fence: make(chan bool, 1),
		subs: map[string]string{}, replies: map[string]time.Time{}}
	c.changed.L = &c.mu
	c.mu.Lock() // tick waits for the timer
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(c.after, c.tick)
	return c
}

// Read implements net.Conn.
func (c *restConn) Read(p []byte) (int, error) {
	for {
		conn, n, err := c.readable(p)
		if conn == nil {
			return n, err
		}
		n, err = conn.Read(p)
		if n, err = c.received(conn, p[:n], err); n > 0 || err != nil {
			return n, err
		}
	}
}

// readable returns the connection to read from, or without one what Read returns.
func (c *restConn) readable(p []byte) (net.Conn, int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.err != nil:
			return nil, 0, c.err
		case len(c.made) > 0 && c.in.whole():
			n := copy(p, c.made)
			c.made = c.made[n:]
			return nil, n, nil
		case c.conn != nil:
			return c.conn, 0, nil
		}
		c.changed.Wait()
	}
}

// received notes what was read, and begins a rest after the last byte before it. It returns how much of p is for the client.
func (c *restConn) received(conn net.Conn, p []byte, err error) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	n, found := len(p), false
	var from, to int // of the answer to the PING before a rest
	c.in.scan(p, func(words [][]byte, begin, end int) {
		switch {
		case len(words) > 1 && bytes.HasSuffix(words[0], []byte("MSG")):
			c.used = time.Now()
			c.answered(string(words[1]))
		case len(words) == 1 && string(words[0]) == "PONG":
			c.pings, c.greeted = max(c.pings-1, 0), true
			if c.fenced {
				c.fenced, found, from, to = false, true, begin, end
			}
		}
	})
	if !found {
		return n, err
	}
	if from >= 0 { // the client has the beginning otherwise, and ignores an answer for which it does not wait
		n = from + copy(p[from:], p[to:])
	}
	if err == nil && c.phase == fencing && len(c.held) == 0 && c.in.whole() {
		c.conn = nil
		c.become(resting)
		_ = conn.Close() // nothing is on its way
	}
	select {
	case c.fence <- c.phase == resting:
	default: // it came too late
	}
	return n, err
}

// answered notes that a message has come on a subject. c.mu is held.
func (c *restConn) answered(subject string) {
	delete(c.replies, subject)
	if rest, acked := strings.CutPrefix(subject, ackedSubject); acked { // see ackSubject
		delete(c.replies, ackSubject+rest)
	}
}

// Write implements net.Conn.
func (c *restConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	use, beats := c.sent(p)
	for len(c.held) > maxHeld && c.phase != inUse && c.err == nil {
		c.changed.Wait()
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return 0, c.err
	}
	conn, r, phase := c.conn, c.resting, c.phase
	switch {
	case phase == resting && !use:
		for ; c.pings > 0; c.pings-- {
			c.made = append(c.made, "PONG\r\n"...)
		}
		c.changed.Broadcast()
	case phase != inUse:
		c.held = append(c.held, p...)
		if phase == resting {
			c.become(waking)
		}
	}
	c.mu.Unlock()
	switch {
	case phase == inUse:
		return conn.Write(p)
	case phase == resting && use:
		c.restFailed(r, r.Wake())
	case phase == resting && beats:
		c.restFailed(r, r.Beat())
	}
	return len(p), nil
}

// restFailed is failIf for an error of a rest. One that has ended meanwhile does not matter.
func (c *restConn) restFailed(r Resting, err error) {
	c.mu.Lock()
	over := c.resting != r
	c.mu.Unlock()
	if !over {
		c.failIf(err)
	}
}

// become changes the phase. c.mu is held.
func (c *restConn) become(p restPhase) {
	c.phase = p
	c.hub.rests.Store(p == resting)
}

// sent notes what the client writes. It reports whether that is a use of the connection, and whether there is a heartbeat in
// it.
func (c *restConn) sent(p []byte) (use, beats bool) {
	c.out.scan(p, func(words [][]byte, _, _ int) {
		if len(words) == 0 {
			return
		}
		switch string(words[0]) {
		case "PING":
			c.pings++
			return
		case "PONG":
			return
		case "CONNECT":
			c.connect = bytes.Join(words, []byte(" "))
		case "SUB":
			c.subs[string(words[len(words)-1])] = string(bytes.Join(words, []byte(" ")))
		case "UNSUB":
			if len(words) == 2 { // during a rest this is all, since only the others are made again
				c.unsubscribed(string(words[1]))
				return
			} // with a limit it goes on, and nobody knows until when: at worst the connection never rests
		case "PUB", "HPUB":
			if string(words[1]) == c.rest.Heartbeat {
				beats = true
				return
			}
			c.request(words)
		}
		use = true
	})
	use = use || !c.out.whole()
	if use {
		c.used = time.Now()
	}
	return use, beats
}

// unsubscribed forgets a subscription, with the request whose answer it was for. c.mu is held.
func (c *restConn) unsubscribed(id string) {
	if line, ok := c.subs[id]; ok {
		delete(c.replies, subjectOf(line))
		delete(c.subs, id)
	}
}

// subjectOf returns the subject in the control line of a subscription.
func subjectOf(line string) string { return strings.Fields(line)[1] }

// request notes the subject of the answer to a message, if it has one.
func (c *restConn) request(words [][]byte) {
	without := 3 // words: operation, subject, size
	if string(words[0]) == "HPUB" {
		without++ // the size of the header
	}
	if len(words) > without {
		c.replies[string(words[2])] = time.Now()
	}
}

// tick begins a rest if the connection was not used for long enough, and otherwise looks again later.
func (c *restConn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	maps.DeleteFunc(c.replies, func(_ string, since time.Time) bool { return time.Since(since) >= answerTime })
	if left := c.after - time.Since(c.used); left > 0 {
		c.timer.Reset(left)
	} else if !c.mayRest() {
		c.timer.Reset(c.after)
	} else {
		c.hub.asking.Go(c.run)
	}
}

// mayRest reports whether nothing is expected that the hub does not watch. c.mu is held.
func (c *restConn) mayRest() bool {
	for _, line := range c.subs {
		if !c.isWatched(subjectOf(line)) {
			return false
		}
	}
	return c.phase == inUse && c.greeted && c.pings == 0 && len(c.replies) == 0 && c.out.whole() && time.Since(c.used) >= c.after
}

// isWatched reports whether a subscription misses nothing meanwhile: it is for answers to requests, or the hub watches it.
func (c *restConn) isWatched(subject string) bool {
	if subject == c.rest.News || subject == c.rest.Failed {
		return true
	}
	return strings.HasSuffix(subject, ".*") && (strings.HasPrefix(subject, c.answers+".") || strings.HasPrefix(subject, ackedSubject))
}

// run is one rest.
func (c *restConn) run() {
	r, err := c.rest.Ask(c.hub.ctx, c.hub.current().User)
	if e := asError(err); e != nil && e.Code == CodeUnsupported {
		return
	}
	if err == nil {
		if c.begin(r) {
			c.failIf(c.end(r))
		}
		c.mu.Lock()
		c.resting = nil
		c.mu.Unlock()
		_ = r.Close() // the rest is over
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = c.rest.After
	if c.err == nil {
		c.timer.Reset(c.after)
	}
}

// begin reports whether the rest has begun. It has not if the connection is used in the meantime.
func (c *restConn) begin(r Resting) bool {
	c.writing.Lock()
	c.mu.Lock()
	may, conn := c.err == nil && c.mayRest(), c.conn
	if may {
		c.phase, c.resting, c.fenced = fencing, r, true
		c.pings++
		select {
		case <-c.fence: // of an answer that came too late
		default:
		}
	}
	c.mu.Unlock()
	c.writing.Unlock()
	if !may {
		return false
	}
	// What the hub has sent before is received before the answer.
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		c.failIf(err)
		return false
	}
	late := time.NewTimer(fenceTimeout)
	defer late.Stop()
	select {
	case begun := <-c.fence:
		if begun {
			return true
		}
	case <-late.C:
	case <-c.hub.ctx.Done():
	}
	c.mu.Lock()
	begun := c.phase != fencing // it was just late
	c.mu.Unlock()
	if !begun {
		c.failIf(c.write(conn, ""))
	}
	return begun
}

// end waits for the end of the rest, and connects again.
func (c *restConn) end(r Resting) error {
	former := c.hub.current()
	g, beaten, err := r.Wait()
	if err == nil && time.Now().After(g.Expires) { // there was none, or the process was suspended
		g, err = c.hub.next(wakeTimeout)
	}
	if err == nil && (g.PID != former.PID || g.Address != former.Address) {
		err = &Error{Code: CodeNotRunning, Message: "the hub has started again", Remedy: "try again in a moment"}
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.become(waking)
	login, err := c.login(g)
	news := c.message(c.rest.News)
	if !beaten {
		news += c.message(c.rest.Failed)
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	conn, err := c.hub.reconnect(g)
	if err != nil {
		return err
	}
	if _, err = conn.Write(login); err == nil {
		err = c.write(conn, news)
	}
	if err != nil {
		_ = conn.Close() // err is the cause
	}
	return err
}

// login returns the operations that log in with a Grant and subscribe again. c.mu is held.
func (c *restConn) login(g Grant) ([]byte, error) {
	var options map[string]any
	if err := json.Unmarshal(bytes.TrimPrefix(c.connect, []byte("CONNECT ")), &options); err != nil {
		return nil, fmt.Errorf("read the options of the connection: %w", err)
	}
	options["user"], options["pass"] = g.User, string(g.Password)
	data, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	lines := fmt.Appendf(nil, "CONNECT %s\r\n", data)
	for _, sub := range c.subs {
		lines = fmt.Appendf(lines, "%s\r\n", sub)
	}
	return lines, nil
}

// message returns an empty message for the subscribers of a subject. c.mu is held.
func (c *restConn) message(subject string) (lines string) {
	for id, line := range c.subs {
		if subjectOf(line) == subject {
			lines += fmt.Sprintf("MSG %s %s 0\r\n\r\n", subject, id)
		}
	}
	return lines
}

// write writes what is held, and ends fencing or waking. news is read by the client then.
func (c *restConn) write(conn net.Conn, news string) error {
	for {
		c.mu.Lock()
		if c.err != nil {
			defer c.mu.Unlock()
			return c.err
		}
		held := c.held
		c.held = nil
		if len(held) == 0 {
			c.phase, c.conn, c.used = inUse, conn, time.Now()
			c.made = append(c.made, news...)
		}
		c.changed.Broadcast()
		c.mu.Unlock()
		if len(held) == 0 {
			return nil
		}
		if _, err := conn.Write(held); err != nil {
			return err
		}
	}
}

// failIf ends the connection because of an error. The client connects anew then.
func (c *restConn) failIf(err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	conn, r := c.conn, c.resting
	if c.err == nil {
		c.err = err
		c.hub.rests.Store(false)
	}
	c.timer.Stop()
	c.changed.Broadcast()
	c.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // err is the cause
	}
	if r != nil {
		_ = r.Close()
	}
}

// Close implements net.Conn.
func (c *restConn) Close() error {
	c.failIf(net.ErrClosed)
	return nil
}

// under returns the connection below; nil while there is none.
func (c *restConn) under() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// LocalAddr implements net.Conn.
func (c *restConn) LocalAddr() net.Addr { return restAddr{} }

// RemoteAddr implements net.Conn.
func (c *restConn) RemoteAddr() net.Addr { return restAddr{} }

type restAddr struct{}

func (restAddr) Network() string { return "tcp" }
func (restAddr) String() string  { return "hub" }

// SetDeadline implements net.Conn.
func (c *restConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. A rest has no deadline.
func (c *restConn) SetReadDeadline(t time.Time) error {
	if conn := c.under(); conn != nil {
		return conn.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *restConn) SetWriteDeadline(t time.Time) error {
	if conn := c.under(); conn != nil {
		return conn.SetWriteDeadline(t)
	}
	return nil
}

// Resting reports whether the Bus has given up its connection for as long as nothing uses it.
func (b *Bus) Resting() bool { return b.hub != nil && b.hub.rests.Load() }
