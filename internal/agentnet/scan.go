package agentnet

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

// scanBatch is how many messages one request of a scan asks for, and
// scanBytes about how much they may be. Fewer than two are no batch for the
// server.
const (
	scanBatch = 512
	scanBytes = 4 << 20
)

// stored is a message as a stream holds it.
type stored struct {
	subject  string
	sequence uint64
	time     time.Time // the server's, when it was stored
	header   nats.Header
	data     []byte
}

// scan calls visit with the messages of a stream on a subject, which may have
// wildcards, from a sequence number on, until it returns false. It makes no
// consumer, so it leaves nothing behind and needs no more than the right to
// read this stream. A message that is replaced meanwhile may come twice, later
// as the newer one; none that stays is missed.
func scan(ctx context.Context, b *bus.Bus, stream, subject string, from uint64, visit func(stored) bool) error {
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

// scanPage is one request. more says that there are messages behind last.
func scanPage(ctx context.Context, b *bus.Bus, stream, subject string, from uint64, visit func(stored) bool) (last uint64, more bool, err error) {
	request, err := json.Marshal(map[string]any{"seq": from, "next_by_subj": subject, "batch": scanBatch, "max_bytes": scanBytes})
	if err != nil {
		return 0, false, err
	}
	sub, err := b.Conn().SubscribeSync(b.Conn().NewInbox())
	if err != nil {
		return 0, false, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is gone, and the subscription with it
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return 0, false, err
	}
	if err := b.Conn().PublishRequest("$JS.API.DIRECT.GET."+stream, sub.Subject, request); err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
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
		s, err := parseStored(m)
		if err != nil {
			return 0, false, err
		}
		last = s.sequence
		if !visit(s) {
			return last, false, nil
		}
	}
}

// parseStored reads what a direct get returns.
func parseStored(m *nats.Msg) (stored, error) {
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return stored{}, errors.New("a message without its sequence number")
	}
	return stored{
		subject:  m.Header.Get("Nats-Subject"),
		sequence: seq,
		time:     parseTime(m.Header.Get("Nats-Time-Stamp")),
		header:   m.Header,
		data:     m.Data,
	}, nil
}

// latest returns the last message on a subject as the stream's leader has it,
// nil if there is none.
func latest(ctx context.Context, b *bus.Bus, stream, subject string) (*stored, error) {
	return getMessage(ctx, b, stream, map[string]any{"last_by_subj": subject})
}

// bySequence returns one message, nil if it is gone.
func bySequence(ctx context.Context, b *bus.Bus, stream string, seq uint64) (*stored, error) {
	return getMessage(ctx, b, stream, map[string]any{"seq": seq})
}

func getMessage(ctx context.Context, b *bus.Bus, stream string, what map[string]any) (*stored, error) {
	request, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
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
	s := &stored{subject: answer.Message.Subject, sequence: answer.Message.Sequence,
		time: answer.Message.Time, data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		if s.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, err
		}
	}
	return s, nil
}
