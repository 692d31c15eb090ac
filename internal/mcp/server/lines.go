package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The limits of a connection over lines.
const (
	// maxLine bounds one message, in bytes: a text of 1 MB in which every
	// character is escaped, and a little more.
	maxLine = 8 << 20
	// maxUnderWay is up to how many requests are read before their answers are
	// written. A client that does not read its answers is not read either.
	maxUnderWay = 256
	// maxBatch bounds a JSON-RPC batch, which the revision 2025-03-26 has.
	maxBatch = 100
)

// lines is the connection of newline-delimited JSON. It differs from the SDK's
// in what users meet: a broken line gets an error and does not end the
// connection; tool calls begin in the order in which they came; and the end of
// the input waits for the answers to what was read.
type lines struct {
	in    *bufio.Reader
	close func() error
	ended func() // called once at the end of the input

	writing sync.Mutex
	out     io.Writer

	mu       sync.Mutex
	changed  sync.Cond
	urgent   []jsonrpc.Message  // all but tool calls
	calls    []*jsonrpc.Request // tool calls, which begin one after the other
	turn     any                // the id of the tool call that has begun, nil if the next may
	underWay map[any]*batch     // requests without an answer, by id; nil: in no batch
	writes   int                // answers that are being written
	err      error              // of the input, io.EOF at its end
	closed   bool
}

// batch collects the answers of requests that came together.
type batch struct {
	missing int
	answers []json.RawMessage
}

// Connect implements mcp.Transport; l is its own connection.
func (l *lines) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// newLines makes a connection that reads in until it ends or breaks. Close closes
// in, so that the goroutine that reads it ends where closing has that effect.
func newLines(in io.ReadCloser, out io.Writer, ended func()) *lines {
	l := &lines{in: bufio.NewReaderSize(in, 64<<10), close: in.Close, ended: ended, out: out, underWay: map[any]*batch{}}
	l.changed.L = &l.mu
	return l
}

// SessionID implements mcp.Connection.
func (l *lines) SessionID() string { return "" }

// Close implements mcp.Connection.
func (l *lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.changed.Broadcast()
	return l.close()
}

// release lets the next tool call begin before the one that runs has an answer.
func (l *lines) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn = nil
	l.changed.Broadcast()
}

// pump reads the input line by line. It runs in a goroutine of its own.
func (l *lines) pump() {
	var err error
	for err == nil && l.wantsMore() {
		var line []byte
		line, err = l.readLine()
		switch {
		case errors.Is(err, errLineTooLong):
			err = l.refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message is longer than %d MiB", maxLine>>20))
		case len(line) > 0:
			if writeErr := l.accept(line); writeErr != nil {
				err = writeErr
			}
		}
	}
	l.ended()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.changed.Broadcast()
}

// finish ends the reading: what was read before is still answered.
func (l *lines) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = io.EOF
	}
	l.changed.Broadcast()
}

// wantsMore waits until there is room for another message.
func (l *lines) wantsMore() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.err == nil && len(l.underWay)+l.writes+len(l.urgent) >= maxUnderWay {
		l.changed.Wait()
	}
	return !l.closed && l.err == nil
}

var errLineTooLong = errors.New("the line is too long")

// readLine returns the next line without its end and surrounding space. A line
// that is too long is skipped. The last line may lack its end.
func (l *lines) readLine() ([]byte, error) {
	var line []byte
	for tooLong := false; ; {
		part, err := l.in.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > maxLine; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == nil && tooLong {
			err = errLineTooLong
		}
		return bytes.TrimSpace(line), err
	}
}

// accept queues the messages of a line, or answers that they are none. Its errors
// are those of writing.
func (l *lines) accept(line []byte) error {
	if !json.Valid(line) {
		return l.refuse(jsonrpc.CodeParseError, "the line is not JSON: send one message a line, in UTF-8")
	}
	if line[0] != '[' {
		if problem := l.enqueue(line, nil); problem != "" {
			return l.refuse(jsonrpc.CodeInvalidRequest, problem)
		}
		return nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(line, &elements); err != nil || len(elements) == 0 || len(elements) > maxBatch {
		return l.refuse(jsonrpc.CodeInvalidRequest, fmt.Sprintf("a batch has 1 to %d messages", maxBatch))
	}
	// One more is missing until all are queued, for a quick answer must not
	// complete the batch.
	b := &batch{missing: 1}
	var refused []json.RawMessage
	for _, element := range elements {
		if problem := l.enqueue(element, b); problem != "" {
			refused = append(refused, refusal(jsonrpc.CodeInvalidRequest, problem))
		}
	}
	return l.answered(b, refused...)
}

// enqueue queues one message for Read. It returns what is wrong with it.
func (l *lines) enqueue(data []byte, b *batch) (problem string) {
	message, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return "the message is not one of JSON-RPC 2.0: " + err.Error()
	}
	request, ok := message.(*jsonrpc.Request)
	if ok && request.IsCall() && !exactID(data) {
		return "the id must be a string or a whole number of at most 53 bits"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ok && request.IsCall():
		id := request.ID.Raw()
		if _, taken := l.underWay[id]; taken {
			return fmt.Sprintf("the id %.80q belongs to a request that is under way", fmt.Sprint(id))
		}
		l.underWay[id] = b
		if b != nil {
			b.missing++
		}
		if request.Method == "tools/call" {
			l.calls = append(l.calls, request)
			break
		}
		l.urgent = append(l.urgent, message)
	case ok && request.Method == "notifications/cancelled" && l.forget(request):
	default:
		l.urgent = append(l.urgent, message)
	}
	l.changed.Broadcast()
	return ""
}

// forget drops the tool call that a notification cancels if it has not begun. It
// gets no answer then, as the protocol wants it. The caller holds the lock.
func (l *lines) forget(cancelled *jsonrpc.Request) bool {
	var params mcp.CancelledParams
	if json.Unmarshal(cancelled.Params, &params) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(params.RequestID)
	if err != nil || !id.IsValid() || l.underWay[id.Raw()] != nil { // those of a batch are answered
		return false
	}
	before := len(l.calls)
	l.calls = slices.DeleteFunc(l.calls, func(call *jsonrpc.Request) bool { return call.ID == id })
	if len(l.calls) == before {
		return false
	}
	delete(l.underWay, id.Raw())
	return true
}

// exactID tells whether the id of a request comes back as it was sent: the SDK
// keeps whole numbers only.
func exactID(data []byte) bool {
	var message struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(data, &message) != nil || len(message.ID) == 0 {
		return false
	}
	if message.ID[0] == '"' {
		return true
	}
	n, err := strconv.ParseInt(string(message.ID), 10, 64)
	return err == nil && -1<<53 <= n && n <= 1<<53
}

// Read implements mcp.Connection. After the end of the input it returns what was
// read before, then waits for the answers.
func (l *lines) Read(ctx context.Context) (jsonrpc.Message, error) {
	stop := context.AfterFunc(ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.changed.Broadcast()
	})
	defer stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case l.closed:
			return nil, io.EOF
		case len(l.urgent) > 0:
			message := l.urgent[0]
			l.urgent = l.urgent[1:]
			l.changed.Broadcast() // there is room
			return message, nil
		case len(l.calls) > 0 && l.turn == nil:
			call := l.calls[0]
			l.calls = l.calls[1:]
			l.turn = call.ID.Raw()
			return call, nil
		case l.err != nil && len(l.underWay)+l.writes == 0:
			return nil, l.err
		}
		l.changed.Wait()
	}
}

// Write implements mcp.Connection. It blocks while the client does not read.
func (l *lines) Write(_ context.Context, message jsonrpc.Message) error {
	response, ok := message.(*jsonrpc.Response)
	if ok && response.Error != nil {
		response.Error = coded(response.Error)
	}
	data, err := jsonrpc.EncodeMessage(message)
	if err != nil && ok { // an error here would end the connection
		failed := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the answer cannot be encoded"}
		data, err = jsonrpc.EncodeMessage(&jsonrpc.Response{ID: response.ID, Error: failed})
	}
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if !ok {
		return l.writeLine(data)
	}
	id := response.ID.Raw()
	l.mu.Lock()
	b := l.underWay[id]
	delete(l.underWay, id) // before the client has the answer: it may use the id again then
	hasTurn := l.turn == id
	l.writes++
	l.mu.Unlock()
	if b == nil {
		err = l.writeLine(data)
	} else {
		err = l.answered(b, data)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes--
	if hasTurn {
		l.turn = nil
	}
	l.changed.Broadcast()
	return err
}

// coded gives an error a code where the SDK gives none: params that cannot be
// decoded, and requests that come at the wrong time.
func coded(err error) error {
	if _, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return err
	}
	e := &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: err.Error()}
	if strings.Contains(e.Message, "unmarshaling") {
		e.Code = jsonrpc.CodeInvalidParams
	}
	return e
}

// answered adds the answers of one of a batch's parts, and writes the batch when it
// is complete.
func (l *lines) answered(b *batch, answers ...json.RawMessage) error {
	l.mu.Lock()
	b.answers = append(b.answers, answers...)
	b.missing--
	complete := b.missing == 0 && len(b.answers) > 0
	l.mu.Unlock()
	if !complete {
		return nil
	}
	data, err := json.Marshal(b.answers)
	if err != nil {
		return fmt.Errorf("encode a batch: %w", err)
	}
	return l.writeLine(data)
}

func (l *lines) writeLine(data []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.out.Write(append(data, '\n'))
	return err
}

// refuse answers a line that holds no message that could be answered.
func (l *lines) refuse(code int64, message string) error {
	return l.writeLine(refusal(code, message))
}

func refusal(code int64, message string) []byte {
	data, err := json.Marshal(struct {
		Version string        `json:"jsonrpc"`
		ID      any           `json:"id"`
		Error   jsonrpc.Error `json:"error"`
	}{"2.0", nil, jsonrpc.Error{Code: code, Message: message}})
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return data
}
