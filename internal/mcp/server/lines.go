package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/mcp/wire"
)

// Limits of a connection over lines.
const (
	maxLine    = 8 << 20 // bytes of a message: a text of 1 MB with every character escaped, and its envelope
	maxPending = 256     // requests without an answer; then the input is not read
	idleBuffer = 4 << 10 // bytes that a client without requests keeps: a hub has thousands of them
	maxBatch   = 100     // messages of a JSON-RPC batch, which the revision 2025-03-26 has
)

// lines is a connection over newline-delimited JSON. Unlike the SDK's, it answers an invalid line with an error instead
// of ending the connection, it begins tool calls in the order of their requests, and at the end of the input it answers
// all requests that were read.
type lines struct {
	in    *process.Lines
	long  idScanner // of a line that is too long
	close func() error
	ended func() // called once at the end of the input

	writing sync.Mutex
	out     io.Writer

	mu      sync.Mutex
	changed sync.Cond
	urgent  []jsonrpc.Message  // all but tool calls
	calls   []*jsonrpc.Request // tool calls that have not begun
	turn    any                // id of the tool call that delays the next one, nil for none
	pending map[any]*pending   // requests without an answer, by id
	direct  directCalls        // nil for none
	begun   sync.WaitGroup     // direct calls
	open    context.Context    // of direct calls, until Close
	end     context.CancelFunc
	writes  int   // answers that are being written
	awaited int   // those of them that delay the next tool call, as somebody waits for them to be written
	err     error // of the input, io.EOF at its end
	closed  bool
}

// pending is a request without an answer.
type pending struct {
	batch     *batch // nil for none
	read      time.Time
	answered  []func(written bool) // called when the answer was written
	cancelled bool                 // the client ignores the answer
	cancel    context.CancelFunc   // of a direct call; nil for one that the SDK answers
}

// directCalls returns what answers a tool call without the SDK's connection; nil if the SDK must answer it. read is when the call was read.
type directCalls func(call *jsonrpc.Request, read time.Time) *directCall

// directCall is a tool call that the SDK's connection does not see.
type directCall struct {
	answer  func(context.Context) (json.RawMessage, error) // returns the JSON of its result
	ordered bool                                           // it delays the next call, until it is released
}

// batch collects the answers to a batch of requests.
type batch struct {
	missing  int
	answers  []json.RawMessage
	requests []*pending // that have an answer
}

// Connect implements mcp.Transport; l is its own connection.
func (l *lines) Connect(context.Context) (mcp.Connection, error) { return l, nil }

// newLines returns a connection that reads in until it ends or fails. Close closes in.
func newLines(in io.ReadCloser, out io.Writer, ended func()) *lines {
	l := &lines{in: process.NewLinesSize(in, maxLine, idleBuffer), close: in.Close, ended: ended, out: out, pending: map[any]*pending{}}
	l.changed.L = &l.mu
	l.open, l.end = context.WithCancel(context.Background())
	l.in.OnLong(l.long.add)
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
	l.end()
	l.changed.Broadcast()
	return l.close()
}

// running returns the tool call that delays the next one: the one that begins, until it is released.
func (l *lines) running() *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending[l.turn]
}

// release lets the next tool call begin before the one that runs has an answer.
func (l *lines) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn = nil
	l.changed.Broadcast()
}

// pump reads the input line by line until it ends.
func (l *lines) pump() {
	var err error
	for err == nil && l.awaitCapacity() {
		var line []byte
		line, err = l.in.Next()
		line = bytes.TrimSpace(line)
		switch {
		case errors.Is(err, process.ErrLineTooLong):
			err = l.writeLine(refusal(l.idOfLong(), jsonrpc.CodeInvalidRequest,
				fmt.Sprintf("the message is longer than %d MiB: write the long part to a file and send its path", maxLine>>20)))
		case len(line) > 0:
			err = l.accept(line)
		}
	}
	l.ended()
	l.finish(err)
}

// idOfLong returns the id of the request in the line that was too long; nil if it has none, or one that is pending.
func (l *lines) idOfLong() any {
	raw := l.long.request()
	if raw == nil || !exactID([]byte(`{"id":`+string(raw)+`}`)) {
		return nil
	}
	var value any
	if json.Unmarshal(raw, &value) != nil {
		return nil
	}
	id, err := jsonrpc.MakeID(value)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.pending[id.Raw()]; err != nil || taken {
		return nil
	}
	return raw
}

// finish ends the input with an error. Requests that were read are still answered.
func (l *lines) finish(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = cmp.Or(l.err, err)
	l.changed.Broadcast()
}

// awaitCapacity blocks until another message may be read. It reports false at the end of the input.
func (l *lines) awaitCapacity() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.err == nil && len(l.pending)+l.writes+len(l.urgent) >= maxPending {
		l.changed.Wait()
	}
	return !l.closed && l.err == nil
}

// accept queues the messages of a line, or answers with an error if it is invalid. It returns an error of writing.
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
	b := &batch{missing: 1} // one more until all are queued, so that an early answer does not complete the batch
	var refused []json.RawMessage
	for _, element := range elements {
		if problem := l.enqueue(element, b); problem != "" {
			refused = append(refused, refusal(nil, jsonrpc.CodeInvalidRequest, problem))
		}
	}
	return l.answered(b, refused...)
}

// enqueue queues one message for Read. It returns a description of the problem with an invalid one.
func (l *lines) enqueue(data []byte, b *batch) (problem string) {
	message := wire.Plain(data)
	plain := message != nil
	if !plain {
		var err error
		if message, err = jsonrpc.DecodeMessage(data); err != nil {
			return "the message is not one of JSON-RPC 2.0: " + err.Error()
		}
	}
	request, ok := message.(*jsonrpc.Request)
	if ok && request.IsCall() && !plain && !exactID(data) {
		return "the id must be a string or a whole number of at most 53 bits"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ok && request.IsCall():
		id := request.ID.Raw()
		if _, taken := l.pending[id]; taken {
			return fmt.Sprintf("the id %.80q belongs to a pending request", fmt.Sprint(id))
		}
		l.pending[id] = &pending{batch: b, read: time.Now()}
		if b != nil {
			b.missing++
		}
		if request.Method == "tools/call" {
			l.calls = append(l.calls, request)
		} else {
			l.urgent = append(l.urgent, message)
		}
	case ok && request.Method == "notifications/cancelled" && l.cancel(request):
	default:
		l.urgent = append(l.urgent, message)
	}
	l.changed.Broadcast()
	return ""
}

// cancel drops a tool call that has not begun; as the protocol requires, it gets no answer. It reports false for any
// other request. The lock is held.
func (l *lines) cancel(cancelled *jsonrpc.Request) bool {
	var params mcp.CancelledParams
	if json.Unmarshal(cancelled.Params, &params) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(params.RequestID)
	if err != nil || !id.IsValid() {
		return false
	}
	p := l.pending[id.Raw()]
	if p != nil {
		p.cancelled = true
	}
	if p != nil && p.cancel != nil {
		p.cancel()
		return true
	}
	if p == nil || p.batch != nil {
		return false
	}
	before := len(l.calls)
	l.calls = slices.DeleteFunc(l.calls, func(call *jsonrpc.Request) bool { return call.ID == id })
	if len(l.calls) == before {
		return false
	}
	delete(l.pending, id.Raw())
	return true
}

// exactID reports whether an answer would repeat the id of a request exactly: the SDK converts numbers to integers.
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

// Read implements mcp.Connection. After the end of the input it returns the queued messages, then waits for the answers.
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
			l.changed.Broadcast() // for awaitCapacity
			return message, nil
		case len(l.calls) > 0 && l.turn == nil && l.awaited == 0:
			call := l.calls[0]
			l.calls = l.calls[1:]
			if l.begin(call) {
				continue
			}
			l.turn = call.ID.Raw()
			return call, nil
		case l.err != nil && len(l.pending)+l.writes == 0:
			return nil, l.err
		}
		l.changed.Wait()
	}
}

// answerDirectly has calls answered without the SDK from now on, where answer can.
func (l *lines) answerDirectly(answer directCalls) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.direct = answer
}

// begin begins a direct call. It reports false for one that the SDK must answer. The lock is held, but not while the call is read: whoever
// decides whether the caller may have the tool has locks of their own.
func (l *lines) begin(call *jsonrpc.Request) bool {
	direct, p := l.direct, l.pending[call.ID.Raw()]
	if direct == nil || p == nil {
		return false
	}
	ctx, cancel := context.WithCancel(l.open)
	p.cancel = cancel
	l.mu.Unlock()
	known := direct(call, p.read)
	l.mu.Lock()
	if known == nil {
		p.cancel = nil
		cancel()
		return p.cancelled && l.drop(call, p)
	}
	if known.ordered {
		l.turn = call.ID.Raw()
	}
	l.begun.Go(func() { // ends with the call
		defer cancel()
		result, failed := known.answer(ctx)
		if err := l.Write(ctx, &jsonrpc.Response{ID: call.ID, Result: result, Error: failed}); err != nil {
			l.finish(err)
		}
	})
	return true
}

// drop forgets a call that was canceled before it began, as the protocol requires without an answer. The lock is held.
func (l *lines) drop(call *jsonrpc.Request, p *pending) bool {
	if p.batch != nil {
		return false
	}
	delete(l.pending, call.ID.Raw())
	l.changed.Broadcast() // for awaitCapacity
	return true
}

// Write implements mcp.Connection. It blocks while the client does not read.
func (l *lines) Write(_ context.Context, message jsonrpc.Message) error {
	response, ok := message.(*jsonrpc.Response)
	if ok && response.Error != nil {
		response.Error = coded(response.Error)
	}
	data, err := wire.Encode(message)
	if err != nil && ok { // returning it would end the connection
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
	p := l.pending[id]
	delete(l.pending, id) // before the client has the answer, when it may reuse the id
	hasTurn := l.turn == id
	l.writes++
	awaited := p != nil && len(p.answered) > 0
	if awaited {
		l.awaited++
	}
	l.mu.Unlock()
	switch {
	case p == nil || p.batch == nil && !awaited:
		err = l.writeLine(data)
	case p.batch == nil:
		var last time.Time
		last, err = l.writeAwaited(data)
		l.report(err, p)
		l.knows(last)
	default:
		err = l.answeredIn(p, data)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes--
	if awaited {
		l.awaited--
	}
	if hasTurn {
		l.turn = nil
	}
	l.changed.Broadcast()
	return err
}

// coded adds a code to errors that the SDK returns without one: for invalid params and for requests in a wrong state.
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

// report tells who waits for it whether answers were written.
func (l *lines) report(err error, requests ...*pending) {
	for _, p := range requests {
		if p == nil {
			continue
		}
		l.mu.Lock()
		written := err == nil && !p.cancelled
		l.mu.Unlock()
		for _, f := range p.answered {
			f(written)
		}
	}
}

// answeredIn is answered for a request of a batch.
func (l *lines) answeredIn(p *pending, data []byte) error {
	l.mu.Lock()
	p.batch.requests = append(p.batch.requests, p)
	l.mu.Unlock()
	return l.answered(p.batch, data)
}

// answered adds answers to a batch and writes the batch when it is complete.
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
	err = l.writeLine(data)
	l.report(err, b.requests...)
	return err
}

// writeAwaited writes a line, and returns a time before which nobody has read all of it.
func (l *lines) writeAwaited(data []byte) (last time.Time, err error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	if _, err = l.out.Write(data); err == nil {
		last = time.Now()
		_, err = l.out.Write([]byte{'\n'})
	}
	return last, err
}

// knows notes that who has sent the calls that were read since a time knows what was written until now. On a busy computer a client reads an answer
// and calls again before its writer goes on, and the call would not count as one that was sent afterwards.
func (l *lines) knows(last time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, call := range l.calls { // the others have begun
		if p := l.pending[call.ID.Raw()]; p != nil && !last.IsZero() && !p.read.Before(last) {
			p.read = time.Now()
		}
	}
}

func (l *lines) writeLine(data []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.out.Write(append(data, '\n'))
	return err
}

// refuse answers an invalid line, whose id is unknown.
func (l *lines) refuse(code int64, message string) error {
	return l.writeLine(refusal(nil, code, message))
}

// refusal returns an error for the request with an id; nil if it is unknown.
func refusal(id any, code int64, message string) []byte {
	data, err := json.Marshal(struct {
		Version string        `json:"jsonrpc"`
		ID      any           `json:"id"`
		Error   jsonrpc.Error `json:"error"`
	}{"2.0", id, jsonrpc.Error{Code: code, Message: message}})
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	return data
}
