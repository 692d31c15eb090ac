package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// publisher publishes to JetStream and receives the acknowledgements. Unlike that of package jetstream it lets the hub sync
// before the process is answered, see ackSubject. It is safe for concurrent use.
type publisher struct {
	conn *nats.Conn
	link *link
	name string // of this process in the subjects of acknowledgements

	mu      sync.Mutex
	heard   map[string]bool // prefixes of subjects that are subscribed to
	waiting map[uint64]chan *nats.Msg
	numbers uint64
}

func newPublisher(conn *nats.Conn, link *link) *publisher {
	return &publisher{conn: conn, link: link, name: nuid.Next(), heard: map[string]bool{}, waiting: map[uint64]chan *nats.Msg{}}
}

// expect returns the number of the next acknowledgement and the channel that receives it, on the subjects of a prefix.
func (p *publisher) expect(prefix string) (number uint64, answer chan *nats.Msg, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.heard[prefix] { // only queues the subscription
		if _, err := p.conn.Subscribe(prefix+p.name+".*", p.receive); err != nil {
			return 0, nil, err
		}
		p.heard[prefix] = true
	}
	p.numbers++
	answer = make(chan *nats.Msg, 1)
	p.waiting[p.numbers] = answer
	return p.numbers, answer, nil
}

func (p *publisher) receive(m *nats.Msg) {
	number, ok := ackNumber(m.Subject)
	if !ok {
		return
	}
	p.mu.Lock()
	answer := p.waiting[number]
	delete(p.waiting, number)
	p.mu.Unlock()
	if answer != nil {
		answer <- m // has room for one
	}
}

func (p *publisher) forget(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, number)
}

// publish publishes a message and waits for the acknowledgement, until the connection is lost or stopped returns an error,
// which is asked now and then. With synced the acknowledgement comes when the message is synced.
func (p *publisher) publish(ctx context.Context, msg *nats.Msg, synced bool, stopped func() error) (*jetstream.PubAck, error) {
	at, to := ackedSubject, ackedSubject
	if synced {
		to = ackSubject
	}
	number, answer, err := p.expect(at)
	if err != nil {
		return nil, err
	}
	defer p.forget(number)
	changed := p.link.changed.Wait()
	before := p.link.status()
	msg.Reply = to + p.name + "." + strconv.FormatUint(number, 36)
	if err := p.conn.PublishMsg(msg); err != nil {
		return nil, err
	}
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	failing := false
	for {
		select {
		case m := <-answer:
			return decodeAck(m)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
			changed = p.link.changed.Wait()
			if now := p.link.status(); now.state != StateConnected || now.reconnects != before.reconnects {
				return nil, nats.ErrDisconnected
			}
		case <-ticks.C:
			err := stopped()
			if err != nil && failing { // an answer that was on its way has had its time
				return nil, err
			}
			failing = err != nil
		}
	}
}

// decodeAck returns the acknowledgement in the answer to a message, or the error.
func decodeAck(m *nats.Msg) (*jetstream.PubAck, error) {
	if len(m.Data) == 0 && m.Header.Get(statusHeader) == statusNobody {
		return nil, jetstream.ErrNoStreamResponse
	}
	if text, failed := strings.CutPrefix(string(m.Data), notSynced); failed {
		return nil, errorf(CodeStorage, errors.New(text), checkDisk, "the disk did not store the bus's data")
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.PubAck
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, fmt.Errorf("%w: %w", jetstream.ErrInvalidJSAck, err)
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	if answer.Stream == "" {
		return nil, jetstream.ErrInvalidJSAck
	}
	return &answer.PubAck, nil
}

// PublishOnce is Publish of a message with an id, under which the server stores it only once, into a stream, which must be
// that of the subject. It changes msg.
func (b *Bus) PublishOnce(ctx context.Context, msg *nats.Msg, id, stream string) (*jetstream.PubAck, error) {
	if b.publisher == nil {
		return b.Publish(ctx, msg, jetstream.WithMsgID(id), jetstream.WithExpectStream(stream))
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.inFlight.Done()
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, contextError(err, "storing a message")
	}
	if err := b.checkDisk(ctx); err != nil {
		return nil, err
	}
	if msg.Header == nil {
		msg.Header = nats.Header{}
	}
	msg.Header[jetstream.MsgIDHeader] = []string{id}
	msg.Header[jetstream.ExpectedStreamHeader] = []string{stream}
	synced := b.hubSyncs()
	ack, err := b.publisher.publish(ctx, msg, synced, b.storeError)
	if err != nil {
		return nil, requestError(err, "store a message on "+msg.Subject)
	}
	if synced {
		return ack, nil
	}
	return ack, b.Commit(ctx)
}

// hubSyncs reports whether the hub syncs what this process stores once, before it forwards the acknowledgement.
func (b *Bus) hubSyncs() bool {
	grant := b.hub.current()
	return grant.Syncs && grant.Durability == DurabilityCommit
}
