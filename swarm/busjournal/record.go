package busjournal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/swarm"
)

// The headers of a record of several messages: an id of the attempt to store it, the
// number of the message, and how many there are.
const (
	headerRecord = "Parley-Record"
	headerPiece  = "Parley-Piece"
	headerPieces = "Parley-Pieces"
	headroom     = 1 << 10 // bytes of a message that headers may need
	messageCost  = 128     // approximate overhead of a message in the stream, in bytes
)

// Append implements [swarm.Journal].
func (j *Journal) Append(ctx context.Context, id string, after uint64, data []byte) (uint64, error) {
	subject, err := j.subjectOf(id)
	if err != nil {
		return 0, err
	}
	pieces := j.split(subject, data)
	sequence, err := j.store(ctx, id, pieces[0], after)
	if errors.Is(err, swarm.ErrConflict) {
		var rest uint64
		if rest, err = j.cutOff(ctx, id, after); err != nil {
			return 0, err
		}
		sequence, err = j.store(ctx, id, pieces[0], rest)
	}
	for _, m := range pieces[1:] {
		if err != nil {
			break
		}
		sequence, err = j.store(ctx, id, m, sequence)
	}
	return sequence, err
}

// split makes the messages of a record.
func (j *Journal) split(subject string, data []byte) []*nats.Msg {
	if len(data) <= j.most {
		return []*nats.Msg{{Subject: subject, Data: data}}
	}
	record := uuid.NewString()
	chunks := slices.Collect(slices.Chunk(data, j.most))
	pieces := make([]*nats.Msg, len(chunks))
	for i, chunk := range chunks {
		pieces[i] = &nats.Msg{Subject: subject, Data: chunk, Header: nats.Header{
			headerRecord: {record}, headerPiece: {strconv.Itoa(i + 1)}, headerPieces: {strconv.Itoa(len(chunks))},
		}}
	}
	return pieces
}

func (j *Journal) store(ctx context.Context, id string, m *nats.Msg, after uint64) (uint64, error) {
	ack, err := j.publish.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(after))
	var refused *jetstream.APIError
	switch {
	case err == nil:
		j.grew(len(m.Data) + messageCost)
		return ack.Sequence, nil
	case !errors.As(err, &refused):
	case refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence, refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return 0, swarm.ErrConflict
	case isFull(refused):
		return 0, fmt.Errorf("%w: %w", swarm.ErrFull, err)
	}
	return 0, failed(id, "the record cannot be stored", err)
}

// isFull reports whether a stream or a server has no space, as opposed to a disk that fails.
func isFull(e *jetstream.APIError) bool {
	const accountExceeded, insufficient, storageExceeded, storeFailed = 10002, 10023, 10047, 10077
	switch e.ErrorCode {
	case accountExceeded, insufficient, storageExceeded:
		return true
	case storeFailed:
		return strings.Contains(e.Description, "maximum")
	}
	return false
}

// cutOff returns the sequence after which to write if only an incomplete record follows, and otherwise
// [swarm.ErrConflict]. If the incomplete record's writer was only slow, it gets the conflict.
func (j *Journal) cutOff(ctx context.Context, id string, after uint64) (uint64, error) {
	records, last, err := j.read(ctx, id, after)
	if err != nil {
		return 0, err
	}
	if len(records) > 0 || last <= after {
		return 0, swarm.ErrConflict
	}
	return last, nil
}

// Read implements [swarm.Journal].
func (j *Journal) Read(ctx context.Context, id string, after uint64) ([]swarm.Record, error) {
	records, _, err := j.read(ctx, id, after)
	return records, err
}

// read returns the records after a sequence, and the sequence of the last message.
func (j *Journal) read(ctx context.Context, id string, after uint64) (records []swarm.Record, last uint64, err error) {
	subject, err := j.subjectOf(id)
	if err != nil {
		return nil, 0, err
	}
	last, err = j.lastOf(ctx, subject)
	if err != nil || last <= after {
		return nil, last, err
	}
	fail := func(what string, err error) ([]swarm.Record, uint64, error) { return nil, 0, failed(id, what, err) }
	consumer, err := j.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	})
	if err != nil {
		return fail("the journal cannot be read", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fail("the journal cannot be read", err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	var whole assembly
	for {
		m, err := messages.Next()
		if err != nil {
			return fail("the journal cannot be read", errors.Join(err, ctx.Err()))
		}
		at, err := m.Metadata()
		if err != nil {
			return fail("a record cannot be read", err)
		}
		if data, ok := whole.add(m.Headers(), m.Data()); ok {
			records = append(records, swarm.Record{Sequence: at.Sequence.Stream, Data: data})
		}
		if at.Sequence.Stream >= last {
			return records, last, nil
		}
	}
}

// assembly joins the messages of records, one record after the other.
type assembly struct {
	record string
	next   int // the number of the next piece
	data   []byte
}

// add adds the next message and returns the record that it completes, if any.
func (a *assembly) add(h nats.Header, data []byte) (record []byte, ok bool) {
	name := h.Get(headerRecord)
	if name == "" {
		*a = assembly{} // drop an incomplete record
		return data, true
	}
	if piece := h.Get(headerPiece); piece == "1" {
		*a = assembly{record: name, next: 1}
	} else if name != a.record || piece != strconv.Itoa(a.next) {
		*a = assembly{}
		return nil, false
	}
	a.data = append(a.data, data...)
	if h.Get(headerPieces) != strconv.Itoa(a.next) {
		a.next++
		return nil, false
	}
	record = a.data
	*a = assembly{}
	return record, true
}
