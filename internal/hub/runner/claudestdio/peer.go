package claudestdio

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
	"github.com/parleyhub/parley/internal/hub/runner/duplex"
)

// peer speaks with one claude process.
type peer struct {
	conn duplex.Conn
	out  *duplex.Outbox
	done chan struct{} // closed when the reading goroutine has ended

	questions duplex.Questions

	mu    sync.Mutex
	err   error // why reading ended
	next  int
	calls map[string]chan controlLine
	// replays is set once claude has echoed a prompt: from then on a result
	// counts only behind the echo of its prompt.
	replays bool
	prompt  *prompt
	stream  runner.ClaudeStream
}

// prompt is the running one.
type prompt struct {
	id      string
	turn    *duplex.Turn
	started bool // claude has echoed it
	ended   chan duplex.Result
}

// Open greets the agent; the conversation was chosen by the arguments, and its
// id comes with the first prompt.
func (p *peer) Open(ctx context.Context, resume string, t *duplex.Turn) (duplex.Opened, error) {
	answer, err := p.call(ctx, "initialize")
	if err != nil {
		return duplex.Opened{}, err
	}
	if answer.Response.Subtype != "success" {
		return duplex.Opened{}, &runner.Error{Code: runner.CodeProtocol, Message: "claude refuses the stdio protocol: " + answer.Response.Error}
	}
	return duplex.Opened{}, nil
}

// call sends a control request and blocks until its answer.
func (p *peer) call(ctx context.Context, subtype string) (controlLine, error) {
	answer := make(chan controlLine, 1)
	id := p.id()
	p.mu.Lock()
	p.calls[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
	}()
	err := p.out.Send(controlRequest{Type: "control_request", RequestID: id, Request: controlSubtype{Subtype: subtype}})
	if err != nil {
		return controlLine{}, err
	}
	return duplex.Await(ctx, answer, p.done, p.cause)
}

func (p *peer) id() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	return "parley-" + strconv.Itoa(p.next)
}

// Prompt implements duplex.Peer.
func (p *peer) Prompt(ctx context.Context, text string, t *duplex.Turn) (duplex.Result, error) {
	pr := &prompt{
		id:    uuid.NewString(),
		turn:  t,
		ended: make(chan duplex.Result, 1),
	}
	p.mu.Lock()
	p.prompt = pr
	p.stream.Next()
	p.mu.Unlock()
	defer p.detach()
	err := p.out.Send(userLine{
		Type:    "user",
		UUID:    pr.id,
		Message: userMessage{Role: "user", Content: []textBlock{{Type: "text", Text: text}}},
	})
	if err != nil {
		return duplex.Result{}, err
	}
	return duplex.Await(ctx, pr.ended, p.done, p.cause)
}

// detach ends the prompt: what is asked for is let go.
func (p *peer) detach() {
	p.mu.Lock()
	p.prompt = nil
	p.mu.Unlock()
	p.questions.End()
}

// Interrupt implements duplex.Peer.
func (p *peer) Interrupt() error {
	return p.out.Send(controlRequest{
		Type: "control_request", RequestID: p.id(), Request: controlSubtype{Subtype: "interrupt"},
	})
}

// Resumable implements duplex.Peer: claude keeps conversations on disk.
func (p *peer) Resumable() bool { return true }

// Close implements duplex.Peer.
func (p *peer) Close() {
	<-p.done
	p.out.Close()
	p.detach()
}

func (p *peer) cause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// read takes lines until the end, or until one is too long.
func (p *peer) read() {
	defer close(p.done)
	lines := process.NewLines(p.conn.Stdout, p.conn.MaxLine)
	for {
		line, err := lines.Next()
		if err != nil {
			p.mu.Lock()
			p.err = duplex.ReadError(err)
			p.mu.Unlock()
			return
		}
		p.take(line)
	}
}

// take handles one line. What is not JSON, or of an unknown type, is passed over.
func (p *peer) take(b []byte) {
	var h header
	if json.Unmarshal(b, &h) != nil {
		return
	}
	switch h.Type {
	case "control_request":
		p.requested(b)
		return
	case "control_cancel_request":
		p.withdrawn(b)
		return
	case "control_response":
		p.answered(b)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pr := p.prompt
	if pr == nil {
		return // of a turn that is over
	}
	switch {
	case h.Type == "user" && h.IsReplay:
		p.replays = true
		pr.started = pr.started || h.UUID == pr.id
		return
	case h.Type == "result" && p.replays && !pr.started:
		// claude also takes turns of its own, when a task in the background has
		// ended: their results come before the prompt's echo.
		return
	}
	pr.turn.Tell(func(a *runner.Answer) {
		p.stream.Line(b, a)
		switch {
		case h.Type == "result":
			pr.end(ending(b, a))
		case a.Hopeless():
			// claude would try for minutes.
			pr.end(duplex.Result{Err: &runner.Error{Code: runner.CodeAuth, Message: "the credentials were refused"}})
		}
	})
}

// end tells the end of the prompt, once.
func (pr *prompt) end(r duplex.Result) {
	select {
	case pr.ended <- r:
	default: // it said so before
	}
}

// ending reads the end of a turn, of which a has been told.
func ending(b []byte, a *runner.Answer) duplex.Result {
	var l resultLine
	if err := json.Unmarshal(b, &l); err != nil {
		return duplex.Result{Err: &runner.Error{
			Code: runner.CodeProtocol, Message: "the end of claude's turn could not be understood", Err: err,
		}}
	}
	message, auth, failed := a.Failure()
	switch {
	case !failed:
		return duplex.Result{}
	case l.TerminalReason == "aborted_streaming" || l.TerminalReason == "aborted_tools":
		return duplex.Result{Canceled: true}
	case auth:
		return duplex.Result{Err: &runner.Error{Code: runner.CodeAuth, Message: message}}
	default:
		return duplex.Result{Err: &runner.Error{Code: runner.CodeAgent, Message: message}}
	}
}

// answered hands the answer to a control request to whoever waits for it.
func (p *peer) answered(b []byte) {
	var l controlLine
	if json.Unmarshal(b, &l) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	call := p.calls[l.Response.RequestID]
	delete(p.calls, l.Response.RequestID) // a second answer finds nobody
	if call != nil {
		call <- l
	}
}
