package doorbell

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/sessions/presence"
)

const (
	socketTime    = 5 * time.Second
	answerTime    = 500 * time.Millisecond // in which Claude Code says that it holds or refuses a message
	heldTime      = time.Hour              // after which what became of a held message is not followed
	maxPending    = 100                    // messages whose answer is awaited
	maxAnswer     = 64 << 10               // bytes of one connection with answers
	maxAnswering  = 16                     // connections with answers
	maxRecord     = 64 << 10
	socketVersion = 1 // of the protocol
	knownMajor    = "2."
)

// Socket wakes sessions of Claude Code through the socket on which each takes messages of other sessions. Claude Code shows its user
// who has sent the message, and asks where its settings say so. Answers come on a socket of this process in the same directory. It is
// safe for concurrent use; [Socket.Close] ends it.
type Socket struct {
	config     string // Claude Code's directory
	log        *slog.Logger
	answerTime time.Duration

	mu        sync.Mutex
	closed    bool
	listeners map[string]*net.UnixListener // by directory
	pending   map[string]*pendingMessage   // by id
	answering map[net.Conn]struct{}        // connections with answers
	serving   sync.WaitGroup
}

type pendingMessage struct {
	first    chan Outcome // of capacity 1
	later    func(Outcome)
	until    time.Time
	answered bool
}

// NewSocket returns a bell for the sessions of a directory of Claude Code, such as ~/.claude.
func NewSocket(config string, log *slog.Logger) *Socket {
	return &Socket{config: config, log: cmp.Or(log, slog.New(slog.DiscardHandler)), answerTime: answerTime,
		listeners: make(map[string]*net.UnixListener), pending: make(map[string]*pendingMessage), answering: make(map[net.Conn]struct{})}
}

// claudeSession is Claude Code's record of a session.
type claudeSession struct {
	PID       int    `json:"pid"`
	SessionID string `json:"sessionId"`
	ProcStart string `json:"procStart"`
	Version   string `json:"version"`
	Protocol  int    `json:"peerProtocol"`
	Kind      string `json:"kind"`
	Socket    string `json:"messagingSocketPath"`
	Status    string `json:"status"`
}

// record reads and checks Claude Code's record of a session.
func (b *Socket) record(s presence.Session) (r claudeSession, err error) {
	f, err := os.Open(filepath.Join(b.config, "sessions", strconv.Itoa(s.Process.PID)+".json"))
	if err != nil {
		return r, errors.New("claude has no record of it")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("claude's record of it: %w", err)
	case r.PID != s.Process.PID || r.ProcStart != s.Process.Start || !s.Process.Alive():
		return r, errors.New("claude's record is of another process")
	case r.Kind != "interactive":
		return r, errors.New("it has no terminal")
	case r.Socket == "":
		return r, errors.New("messages between sessions are switched off in claude")
	case r.Protocol != socketVersion || !strings.HasPrefix(r.Version, knownMajor):
		return r, fmt.Errorf("claude %.20q is not known", r.Version)
	}
	return r, nil
}

// Ring implements [Bell].
func (b *Socket) Ring(ctx context.Context, s presence.Session, text string, later func(Outcome)) (Outcome, error) {
	if s.Process.PID <= 1 {
		return Unable, errors.New("its process is not known")
	}
	if s.Process.IsAncestorOf(os.Getpid()) { // Claude Code would take its message as the session's own
		return Unable, errors.New("the session has started this hub itself")
	}
	r, err := b.record(s)
	if err != nil {
		return Unable, err
	}
	if r.Status == "busy" || r.Status == "waiting" {
		return Busy, nil
	}
	if err := checkSocket(r.Socket); err != nil {
		return Unable, err
	}
	own, err := b.listen(filepath.Dir(r.Socket))
	if err != nil {
		return Unable, fmt.Errorf("no socket for claude's answers: %w", err)
	}
	id := uuid.NewString()
	p := &pendingMessage{first: make(chan Outcome, 1), later: later, until: time.Now().Add(heldTime)}
	if !b.await(id, p) {
		return Unable, errors.New("too many messages await an answer")
	}
	if err := send(ctx, r, id, own, text); err != nil {
		b.done(id)
		return Unable, err
	}
	select {
	case o := <-p.first:
		if o != Held {
			b.done(id)
		}
		return o, nil
	case <-time.After(b.answerTime):
		b.done(id)
		return Rung, nil // Claude Code answers only what it does not take
	case <-ctx.Done():
		return Unable, ctx.Err()
	}
}

func (b *Socket) await(id string, p *pendingMessage) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for old, x := range b.pending {
		if time.Now().After(x.until) {
			delete(b.pending, old)
		}
	}
	if len(b.pending) >= maxPending {
		return false
	}
	b.pending[id] = p
	return true
}

func (b *Socket) done(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pending, id)
}

// send writes one message to a session's socket.
func send(ctx context.Context, r claudeSession, id, own, text string) error {
	ctx, cancel := context.WithTimeout(ctx, socketTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := checkPeer(conn, r.PID); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	from := "uds:" + own
	// Without from-mode nothing is claimed that would get the message in.
	content := fmt.Sprintf("<cross-session-message from=%q from-name=\"parley\">\n%s\n</cross-session-message>", from, text)
	line, err := json.Marshal(map[string]any{"msgV": socketVersion, "msg_id": id, "type": "user", "session_id": r.SessionID, "from": from,
		"message": map[string]any{"role": "user", "content": content}, "priority": "next"})
	if err != nil {
		return err
	}
	_, err = conn.Write(append(line, '\n'))
	return err
}

// listen returns the path of this process's socket in a directory. Claude Code answers only to a sender that listens itself.
func (b *Socket) listen(dir string) (path string, err error) {
	path = filepath.Join(dir, strconv.Itoa(os.Getpid())+".sock")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return "", net.ErrClosed
	}
	if b.listeners[dir] != nil {
		return path, nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier process with this id
		return "", err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return "", err
	}
	b.listeners[dir] = l
	b.serving.Go(func() { b.serve(l) })
	return path, nil
}

// serve reads answers until the listener is closed.
func (b *Socket) serve(l *net.UnixListener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if !b.admit(conn) {
			_ = conn.Close() // its sender learns no more than that
			continue
		}
		b.serving.Go(func() {
			b.read(conn)
			b.mu.Lock()
			delete(b.answering, conn)
			b.mu.Unlock()
		})
	}
}

// admit notes a connection, unless there are too many.
func (b *Socket) admit(conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.answering) >= maxAnswering {
		return false
	}
	b.answering[conn] = struct{}{}
	return true
}

func (b *Socket) read(conn net.Conn) {
	defer conn.Close()
	if checkPeer(conn, 0) != nil || conn.SetDeadline(time.Now().Add(socketTime)) != nil {
		return
	}
	lines := bufio.NewScanner(io.LimitReader(conn, maxAnswer))
	lines.Buffer(nil, maxAnswer)
	for lines.Scan() {
		id, outcome, ok := decodeStatus(lines.Bytes())
		if ok {
			b.answer(id, outcome)
		}
	}
}

// decodeStatus returns what became of a message; ok is false for another line.
func decodeStatus(line []byte) (id string, outcome Outcome, ok bool) {
	var m struct {
		Action string `json:"action"`
		Status string `json:"status"`
		ID     string `json:"orig_msg_id"`
	}
	if json.Unmarshal(line, &m) != nil || m.Action != "peer_message_status" || m.ID == "" {
		return "", 0, false
	}
	switch m.Status {
	case "held":
		return m.ID, Held, true
	case "delivered":
		return m.ID, Rung, true
	case "denied", "expired":
		return m.ID, Refused, true
	case "dropped":
		return m.ID, Busy, true // as a repetition, or one of too many
	}
	return "", 0, false
}

func (b *Socket) answer(id string, o Outcome) {
	b.mu.Lock()
	p := b.pending[id]
	if o != Held {
		delete(b.pending, id)
	}
	if p == nil {
		b.mu.Unlock()
		return
	}
	first := !p.answered
	p.answered = true
	b.mu.Unlock()
	if first {
		p.first <- o
	} else if o != Held {
		p.later(o)
	}
}

// Close removes the sockets, ends the connections and waits for the goroutines.
func (b *Socket) Close() {
	b.mu.Lock()
	b.closed = true
	for _, l := range b.listeners {
		_ = l.Close() // it also removes the file
	}
	for conn := range b.answering {
		_ = conn.Close() // its reader ends
	}
	b.mu.Unlock()
	b.serving.Wait()
}
