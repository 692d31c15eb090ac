package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// silenceTimeout is how long a request for several messages waits for the next of them.
const silenceTimeout = 5 * time.Second

// StoredMessage is a message of a stream. Its Reply is empty.
type StoredMessage struct {
	*nats.Msg
	Sequence uint64
}

// directRequest is a request of JetStream's direct get for several messages.
type directRequest struct {
	Seq      uint64 `json:"seq"`
	Batch    int    `json:"batch"`
	MaxBytes int    `json:"max_bytes"`
}

// The status of an answer without a message, and the header of an answer of a server that can send several.
const (
	statusHeader     = "Status"
	statusEnd        = "204"
	statusNone       = "404"
	statusNobody     = "503"
	numPendingHeader = "Nats-Num-Pending"
)

// Messages returns messages of a stream from a sequence on, in one request: at most limit, and no more after maxBytes are
// reached. more is false if there are certainly no later ones. With an error it returns the messages that had arrived. The
// error is jetstream.ErrMsgNotFound if there is no message from the sequence on, and nats.ErrNoResponders if there is no
// such stream or it does not allow direct access, and context.DeadlineExceeded also if none arrives for silenceTimeout: many
// messages on a slow connection take longer together. A server before 2.11 sends one message.
func (b *Bus) Messages(ctx context.Context, stream string, from uint64, limit, maxBytes int) (messages []StoredMessage, more bool, err error) {
	if err := b.begin(); err != nil {
		return nil, false, err
	}
	defer b.inFlight.Done()
	request, err := json.Marshal(directRequest{Seq: from, Batch: limit, MaxBytes: maxBytes})
	if err != nil {
		return nil, false, err
	}
	inbox, answers := b.conn.NewInbox(), make(chan *nats.Msg, limit+1) // SubscribeSync makes a channel of 512 KB
	sub, err := b.conn.ChanSubscribe(inbox, answers)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	if err := b.conn.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, request); err != nil {
		return nil, false, err
	}
	silence := time.NewTimer(silenceTimeout)
	defer silence.Stop()
	for {
		var answer *nats.Msg
		select {
		case answer = <-answers:
			silence.Reset(silenceTimeout)
		case <-silence.C:
			return messages, true, context.DeadlineExceeded
		case <-ctx.Done():
			return messages, true, ctx.Err()
		}
		if status := answer.Header.Get(statusHeader); status != "" && answer.Header.Get(jetstream.SequenceHeader) == "" {
			pending := answer.Header.Get(numPendingHeader)
			return messages, status == statusEnd && pending != "" && pending != "0", directError(status, answer.Header)
		}
		m, last, err := storedMessage(answer)
		if err != nil {
			return messages, true, err
		}
		messages = append(messages, m)
		if last {
			return messages, true, nil
		}
	}
}

// directError returns the error of an answer without a message, nil at the end of the messages.
func directError(status string, header nats.Header) error {
	switch status {
	case statusEnd:
		return nil
	case statusNone:
		return jetstream.ErrMsgNotFound
	case statusNobody:
		return nats.ErrNoResponders
	}
	return fmt.Errorf("read stored messages: status %s %s", status, header.Get("Description"))
}

// storedMessage decodes an answer. last is set for that of a server that sends one message only. The server's headers follow
// those of the publisher, who may have used the same names.
func storedMessage(answer *nats.Msg) (m StoredMessage, last bool, err error) {
	value := func(name string) string {
		if all := answer.Header.Values(name); len(all) > 0 {
			return all[len(all)-1]
		}
		return ""
	}
	seq, err := strconv.ParseUint(value(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return StoredMessage{}, false, fmt.Errorf("read stored messages: the answer has no sequence: %w", err)
	}
	answer.Subject, answer.Reply = value(jetstream.SubjectHeader), ""
	return StoredMessage{Msg: answer, Sequence: seq}, value(numPendingHeader) == "", nil
}
