package hub

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/bus"
)

// jetStream stores a hub in three streams, below parley.hub.<name>:
//
//	task.<id>              the head and body of a task
//	part.<id>.<rev>.<n>    the body's pieces, if it is too large for one message
//	record.<kind>.<key>    a small record; the key is base64
//	output.<id>            the output of a running task (the second stream)
//	trace.<id>.<turn>      the trace of a turn (the third stream)
//
// The first and the third stream keep one message for each subject. The header "Parley-Task" holds
// the head of a task, and "Parley-Spent" what its turns have taken, so that the hub's start reads headers only.
type jetStream struct {
	bus    *bus.Bus
	prefix string
	state  jetstream.Stream
	output jetstream.Stream
	traces jetstream.Stream
	piece  int // bytes of a body in one message

	log       *slog.Logger
	headsDir  string                    // of the file of heads, see headsFile; "" without one
	ahead     *Heads                    // the file, if it is being read; nil after the start
	changed   atomic.Int64              // writes of tasks since the file's
	unsaved   atomic.Pointer[headsFile] // for the next saveHeads
	inFile    atomic.Uint64             // what is written has a higher sequence than all that the file has, see checkHeads
	saved     time.Time                 // used by saveHeads only, as headCount
	headCount int

	mu   sync.Mutex
	revs map[a2a.TaskID]int64 // of the bodies in pieces
}

const (
	taskHeader   = "Parley-Task"
	spentHeader  = "Parley-Spent"
	headerFormat = "1"
	maxPiece     = 4 << 20
)

// openJetStream opens the store, and creates it if needed. Traces are removed after traceTTL.
func openJetStream(ctx context.Context, b *bus.Bus, name string, traceTTL time.Duration) (*jetStream, error) {
	s := &jetStream{bus: b, log: slog.New(slog.DiscardHandler), prefix: "parley.hub." + name + ".", revs: map[a2a.TaskID]int64{}}
	meta := map[string]string{"parley": "hub", "hub": name}
	var err error
	s.state, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name:              "PARLEY_HUB_" + name,
		Description:       "tasks, sessions and contexts of a hub",
		Subjects:          []string{s.prefix + "task.*", s.prefix + "part.*.*.*", s.prefix + "record.*.*"},
		Storage:           jetstream.FileStorage,
		MaxMsgsPerSubject: 1,
		AllowDirect:       true,
		Metadata:          meta,
	})
	if err != nil {
		return nil, err
	}
	s.output, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name:        "PARLEY_HUB_" + name + "_OUTPUT",
		Description: "output of a hub's running tasks",
		Subjects:    []string{s.prefix + "output.*"},
		Storage:     jetstream.FileStorage,
		AllowDirect: true,
		Metadata:    meta,
	})
	if err != nil {
		return nil, err
	}
	s.traces, err = b.EnsureStream(ctx, jetstream.StreamConfig{
		Name:              "PARLEY_HUB_" + name + "_TRACES",
		Description:       "traces of the turns of a hub's tasks",
		Subjects:          []string{s.prefix + "trace.*.*"},
		Storage:           jetstream.FileStorage,
		MaxMsgsPerSubject: 1,
		MaxAge:            traceTTL,
		AllowDirect:       true,
		Metadata:          meta,
	})
	if err != nil {
		return nil, err
	}
	const headroom = 64 << 10 // for headers, if the server has a small limit
	s.piece = int(min(maxPiece, max(b.Conn().MaxPayload()-headroom, 16<<10)))
	return s, nil
}

func (s *jetStream) load(ctx context.Context, indexed func(*index), task func(head), record func(kind, key string, value []byte), bad func(error)) error {
	f, err := s.loadHeads(ctx)
	if err = reportMissing(err, bad); err != nil {
		return err
	}
	f.visit(indexed, func(d decodedHead) {
		if d.rev != 0 {
			s.revs[d.ID] = d.rev
		}
		task(d.head)
	}, bad)
	err = s.read(ctx, s.state, s.prefix+"record.>", 0, false, func(m jetstream.Msg) {
		tokens := strings.Split(strings.TrimPrefix(m.Subject(), s.prefix), ".")
		key, err := base64.RawURLEncoding.DecodeString(tokens[len(tokens)-1])
		if err != nil || len(tokens) != 3 {
			bad(fmt.Errorf("a record has the unknown subject %s", m.Subject()))
			return
		}
		record(tokens[1], string(key), m.Data())
	})
	return reportMissing(err, bad)
}

func (s *jetStream) damaged() map[a2a.TaskID]bool {
	tasks := make(map[a2a.TaskID]bool)
	for _, r := range s.bus.Damage() {
		if id, ok := strings.CutPrefix(r.Subject, s.prefix+"task."); ok && r.Lost() {
			tasks[a2a.TaskID(id)] = true
		}
	}
	return tasks
}

// missingError says that messages of a subject cannot be read.
type missingError struct {
	subject string
	n       uint64
}

func (e *missingError) Error() string {
	return fmt.Sprintf("read %s: %d messages are missing", e.subject, e.n)
}

func (e *missingError) Unwrap() error { return errUnreadable }

// isDamage reports whether an error is about what is stored, and not about the store.
func isDamage(err error) bool {
	return errors.Is(err, errUnreadable) || errors.Is(err, errNotStored)
}

// reportMissing reports missing messages to bad and returns any other error.
func reportMissing(err error, bad func(error)) error {
	if missing, ok := errors.AsType[*missingError](err); ok {
		bad(missing)
		return nil
	}
	return err
}

// readTimeout bounds the wait for the next message that the server says it has. The server drops a reader at a message
// that it cannot read.
const readTimeout = 10 * time.Second

// read calls visit with the messages of a subject from a sequence on, the oldest first. The error is a *missingError if there are fewer
// than the server says.
func (s *jetStream) read(ctx context.Context, stream jetstream.Stream, subject string, from uint64, headersOnly bool, visit func(jetstream.Msg)) error {
	cfg := jetstream.ConsumerConfig{FilterSubject: subject, HeadersOnly: headersOnly}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	c, end, err := consume(ctx, stream, cfg)
	if err != nil {
		return fmt.Errorf("read %s: %w", subject, err)
	}
	defer end()
	left := c.CachedInfo().NumPending
	for left > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: %w", subject, err)
		}
		batch, err := c.Fetch(int(min(left, 2000)), jetstream.FetchMaxWait(readTimeout))
		if err != nil {
			return fmt.Errorf("read %s: %w", subject, err)
		}
		got := uint64(0)
		for m := range batch.Messages() {
			visit(m)
			got++
		}
		if err := batch.Error(); err != nil {
			return fmt.Errorf("read %s: %w", subject, err)
		}
		if got == 0 {
			return &missingError{subject: subject, n: left}
		}
		left -= min(got, left)
	}
	return nil
}

// count returns the number of messages of a subject.
func (s *jetStream) count(ctx context.Context, subject string) (uint64, error) {
	c, end, err := consume(ctx, s.state, jetstream.ConsumerConfig{FilterSubject: subject, HeadersOnly: true})
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", subject, err)
	}
	defer end()
	return c.CachedInfo().NumPending, nil
}

// consume makes a consumer in memory that acknowledges nothing. end deletes it.
func consume(ctx context.Context, stream jetstream.Stream, cfg jetstream.ConsumerConfig) (c jetstream.Consumer, end func(), err error) {
	cfg.AckPolicy, cfg.MemoryStorage, cfg.Replicas = jetstream.AckNonePolicy, true, 1
	if c, err = stream.CreateConsumer(ctx, cfg); err != nil {
		return nil, nil, err
	}
	return c, func() {
		// After an error the server deletes the inactive consumer.
		_ = stream.DeleteConsumer(context.WithoutCancel(ctx), c.CachedInfo().Name)
	}, nil
}

// These stand in a head for live if the task is durable or held, too.
const (
	durableLive = "durable"
	heldLive    = "held"
)

// encodeHead writes "format state created updated live rev pieces agent context".
func encodeHead(h head, rev int64, pieces int) string {
	live := strconv.FormatBool(h.Live)
	switch {
	case h.Live && h.Durable:
		live = durableLive
	case h.Live && h.Held:
		live = heldLive
	}
	return fmt.Sprint(headerFormat, " ", h.State, " ", h.Created, " ", h.Updated, " ", live, " ", rev, " ", pieces, " ",
		h.Agent, " ", base64.RawURLEncoding.EncodeToString([]byte(h.Context)))
}

// cut sets fields to the parts of s between blanks and returns how many there are; one more than there is room for if it is not all.
func cut(s string, fields []string) int {
	for i := range fields {
		var more bool
		if fields[i], s, more = strings.Cut(s, " "); !more {
			return i + 1
		}
	}
	return len(fields) + 1
}

// decodeHead returns a head without its id, and the revision and the number of the body's
// pieces; 0 if the body is with its head.
func decodeHead(s string) (h head, rev int64, pieces int, err error) {
	var f [9]string
	if cut(s, f[:]) != len(f) || f[0] != headerFormat {
		return head{}, 0, 0, fmt.Errorf("a task is stored in the unknown form %q", text.Clip(s, 60))
	}
	created, err1 := strconv.ParseInt(f[2], 10, 64)
	updated, err2 := strconv.ParseInt(f[3], 10, 64)
	durable, held := f[4] == durableLive, f[4] == heldLive
	live, err3 := durable || held, error(nil)
	if !live {
		live, err3 = strconv.ParseBool(f[4])
	}
	rev, err4 := strconv.ParseInt(f[5], 10, 64)
	pieces, err5 := strconv.Atoi(f[6])
	contextID, err6 := base64.RawURLEncoding.DecodeString(f[8])
	if err := cmp.Or(err1, err2, err3, err4, err5, err6); err != nil {
		return head{}, 0, 0, fmt.Errorf("a stored task's header cannot be read: %w", err)
	}
	state := a2a.TaskState(f[1])
	if !knownState(state) {
		return head{}, 0, 0, fmt.Errorf("a stored task has the unknown state %q", text.Clip(f[1], 40))
	}
	h = head{State: state, Created: created, Updated: updated, Live: live, Durable: durable, Held: held, Agent: f[7], Context: string(contextID)}
	return h, rev, pieces, nil
}

func (s *jetStream) putTask(ctx context.Context, h head, body []byte) error {
	if !h.Live {
		ctx = bus.Urgent(ctx) // on a full disk, running tasks still end
	}
	var rev int64
	n := 0
	if len(body) > s.piece {
		rev = h.Updated
		for piece := range slices.Chunk(body, s.piece) {
			if _, err := s.bus.JetStream().Publish(ctx, s.pieceSubject(h.ID, rev, n), piece); err != nil {
				return fmt.Errorf("store a piece of task %s: %w", h.ID, err)
			}
			n++
		}
		body = nil
	}
	msg := &nats.Msg{
		Subject: s.prefix + "task." + string(h.ID),
		Header:  nats.Header{taskHeader: []string{encodeHead(h, rev, n)}},
		Data:    body,
	}
	if h.Spent != (spent{}) {
		msg.Header[spentHeader] = []string{h.Spent.encode()}
	}
	if err := s.store(ctx, msg); err != nil {
		return err
	}
	s.changed.Add(1)
	return s.dropPieces(ctx, h.ID, rev)
}

// store stores a message of a task or a record.
func (s *jetStream) store(ctx context.Context, msg *nats.Msg) error {
	inFile := s.inFile.Load()
	ack, err := s.bus.Publish(ctx, msg)
	if err == nil {
		s.checkHeads(inFile, ack.Sequence)
	}
	return err
}

func (s *jetStream) pieceSubject(id a2a.TaskID, rev int64, n int) string {
	return fmt.Sprintf("%spart.%s.%d.%d", s.prefix, id, rev, n)
}

// dropPieces removes the pieces of the previous body, if it had any.
func (s *jetStream) dropPieces(ctx context.Context, id a2a.TaskID, rev int64) error {
	s.mu.Lock()
	old := s.revs[id]
	if rev == 0 {
		delete(s.revs, id)
	} else {
		s.revs[id] = rev
	}
	s.mu.Unlock()
	if old == 0 || old == rev {
		return nil
	}
	return s.state.Purge(ctx, jetstream.WithPurgeSubject(fmt.Sprintf("%spart.%s.%d.*", s.prefix, id, old)))
}

func (s *jetStream) task(ctx context.Context, id a2a.TaskID) ([]byte, error) {
	for {
		m, err := s.last(ctx, s.prefix+"task."+string(id))
		if err != nil {
			return nil, err
		}
		_, rev, n, err := decodeHead(m.Header.Get(taskHeader))
		if err != nil || n == 0 {
			return m.Data, err
		}
		body, err := s.join(ctx, id, rev, n)
		if !errors.Is(err, errNotStored) {
			return body, err
		}
		// Either a newer body replaces this one, or the pieces are lost.
		again, err := s.last(ctx, s.prefix+"task."+string(id))
		if err != nil {
			return nil, err
		}
		if again.Sequence == m.Sequence {
			return nil, &missingError{subject: m.Subject, n: 1}
		}
	}
}

func (s *jetStream) join(ctx context.Context, id a2a.TaskID, rev int64, n int) ([]byte, error) {
	var body []byte
	for i := range n {
		m, err := s.last(ctx, s.pieceSubject(id, rev, i))
		if err != nil {
			return nil, err
		}
		body = append(body, m.Data...)
	}
	return body, nil
}

func (s *jetStream) last(ctx context.Context, subject string) (*jetstream.RawStreamMsg, error) {
	return lastIn(ctx, s.state, subject)
}

func lastIn(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, errNotStored
	}
	return m, err
}

func (s *jetStream) deleteTask(ctx context.Context, id a2a.TaskID) error {
	if err := s.state.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+"task."+string(id))); err != nil {
		return err
	}
	s.changed.Add(1)
	if err := s.traces.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+"trace."+string(id)+".*")); err != nil {
		return err
	}
	return s.dropPieces(ctx, id, 0)
}

func (s *jetStream) traceSubject(id a2a.TaskID, turn int) string {
	return fmt.Sprintf("%strace.%s.%d", s.prefix, id, turn)
}

func (s *jetStream) putTrace(ctx context.Context, id a2a.TaskID, turn int, body []byte) error {
	_, err := s.bus.Publish(ctx, &nats.Msg{Subject: s.traceSubject(id, turn), Data: body})
	return err
}

func (s *jetStream) trace(ctx context.Context, id a2a.TaskID, turn int) ([]byte, error) {
	m, err := lastIn(ctx, s.traces, s.traceSubject(id, turn))
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// trimTraces estimates from the traces' mean size how many are to go, until there is enough room.
func (s *jetStream) trimTraces(ctx context.Context, maxBytes int64) error {
	for {
		info, err := s.traces.Info(ctx)
		if err != nil {
			return err
		}
		st := info.State
		if st.Msgs == 0 || st.Bytes <= uint64(maxBytes) {
			return nil
		}
		keep := uint64(float64(st.Msgs) * float64(maxBytes) / float64(st.Bytes))
		if err := s.traces.Purge(ctx, jetstream.WithPurgeKeep(min(keep, st.Msgs-1))); err != nil {
			return err
		}
	}
}

func (s *jetStream) appendDelta(ctx context.Context, id a2a.TaskID, data []byte) error {
	for piece := range slices.Chunk(data, s.piece) {
		if _, err := s.bus.JetStream().Publish(ctx, s.prefix+"output."+string(id), piece); err != nil {
			return err
		}
	}
	return nil
}

func (s *jetStream) deltas(ctx context.Context, id a2a.TaskID) ([]byte, error) {
	var data []byte
	err := s.read(ctx, s.output, s.prefix+"output."+string(id), 0, false, func(m jetstream.Msg) {
		data = append(data, m.Data()...)
	})
	return data, err
}

func (s *jetStream) dropDeltas(ctx context.Context, id a2a.TaskID) error {
	return s.output.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+"output."+string(id)))
}

func (s *jetStream) dropAllDeltas(ctx context.Context) error {
	if s.output.CachedInfo().State.Msgs == 0 {
		return nil
	}
	return s.output.Purge(ctx)
}

func (s *jetStream) recordSubject(kind, key string) string {
	return s.prefix + "record." + kind + "." + base64.RawURLEncoding.EncodeToString([]byte(key))
}

func (s *jetStream) putRecord(ctx context.Context, kind, key string, value []byte) error {
	return s.store(ctx, &nats.Msg{Subject: s.recordSubject(kind, key), Data: value})
}

func (s *jetStream) deleteRecord(ctx context.Context, kind, key string) error {
	return s.state.Purge(ctx, jetstream.WithPurgeSubject(s.recordSubject(kind, key)))
}
