package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// One request of a scan returns at most ScanBatch messages, and about ScanBytes. The server
// treats a batch of fewer than two as no batch.
const (
	ScanBatch = 512
	ScanBytes = 4 << 20
)

// Message is a stored message of a stream.
type Message struct {
	Subject  string
	Sequence uint64
	Time     time.Time // when the server stored it, by the server's clock
	Header   nats.Header
	Data     []byte
}

// Scan calls visit with the messages of a stream on a subject, which may have wildcards, from a sequence number on,
// until visit returns false. It creates no consumer, so it needs only the right to read this stream. A message that
// is replaced meanwhile may be visited twice, the newer one later; every other message once.
func Scan(ctx context.Context, b *bus.Bus, stream, subject string, from uint64, visit func(Message) bool) error {
	from = max(from, 1)
	for {
		last, more, err := scanPage(ctx, b, stream, subject, from, visit)
		if err != nil {
			return fmt.Errorf("read the stream %s: %w", stream, err)
		}
		if !more {
			return nil
		}
		from = last + 1
	}
}

// scanPage makes one request. more says that there are messages after last.
func scanPage(ctx context.Context, b *bus.Bus, stream, subject string, from uint64, visit func(Message) bool) (last uint64, more bool, err error) {
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject, "batch": ScanBatch, "max_bytes": ScanBytes})
	if err != nil {
		return 0, false, err
	}
	sub, err := b.Conn().SubscribeSync(b.Conn().NewInbox())
	if err != nil {
		return 0, false, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // it fails if the connection has ended, and the subscription with it
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return 0, false, err
	}
	if err := b.Conn().PublishRequest("$JS.API.DIRECT.GET."+stream, sub.Subject, request); err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return 0, false, err
		}
		switch status := m.Header.Get("Status"); status {
		case "":
		case "204": // the end of the batch
			pending, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
			return last, err == nil && pending > 0 && last > 0, nil
		case "404":
			return 0, false, nil
		case "503":
			return 0, false, jetstream.ErrStreamNotFound
		default:
			return 0, false, fmt.Errorf("the server answers %s %s", status, m.Header.Get("Description"))
		}
		if last, err = strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64); err != nil {
			return 0, false, errors.New("a message without its sequence number")
		}
		if !visit(Message{m.Header.Get("Nats-Subject"), last, ParseTime(m.Header.Get("Nats-Time-Stamp")), m.Header, m.Data}) {
			return last, false, nil
		}
	}
}

// Latest returns the last message on a subject as the stream's leader has it, nil if there is none.
func Latest(ctx context.Context, b *bus.Bus, stream, subject string) (*Message, error) {
	return getMessage(ctx, b, stream, map[string]any{"last_by_subj": subject})
}

// BySequence returns one message, nil if it is deleted.
func BySequence(ctx context.Context, b *bus.Bus, stream string, seq uint64) (*Message, error) {
	return getMessage(ctx, b, stream, map[string]any{"seq": seq})
}

func getMessage(ctx context.Context, b *bus.Bus, stream string, what map[string]any) (*Message, error) {
	request, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	m, err := b.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, request)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, answer.Error
	case answer.Message == nil:
		return nil, errors.New("the server's answer holds no message")
	}
	got := &Message{Subject: answer.Message.Subject, Sequence: answer.Message.Sequence, Time: answer.Message.Time, Data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		if got.Header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// DeleteMessage removes a message of a stream. It is no error if the message is gone.
func DeleteMessage(ctx context.Context, b *bus.Bus, stream string, seq uint64) error {
	const deleteFailed, sequenceNotFound = 10057, 10043
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	s, err := b.JetStream().Stream(ctx, stream)
	if err != nil {
		return err
	}
	err = s.DeleteMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) || IsAPIError(err, deleteFailed, sequenceNotFound) {
		return nil
	}
	return err
}
