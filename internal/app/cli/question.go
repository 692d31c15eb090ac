package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// permission returns the permission that a task asks for, nil if it asks a free question.
func permission(task *dialect.Task) *hub.PermissionData {
	if task.Status.Message == nil {
		return nil
	}
	for _, p := range task.Status.Message.Parts {
		if p.Metadata[hub.MetaPermission] == nil {
			continue
		}
		raw, err := json.Marshal(p.Data)
		if err != nil {
			return nil
		}
		var q hub.PermissionData
		if err := json.Unmarshal(raw, &q); err != nil || len(q.Options) == 0 {
			return nil
		}
		return &q
	}
	return nil
}

// printQuestion prints the question of a task and the commands that answer it.
func (a *app) printQuestion(task *dialect.Task) {
	s, id := a.errStyle, oneLine(task.ID)
	q := permission(task)
	if q == nil {
		fmt.Fprintf(a.stderr, "%s %s\n", s.yellow("The agent asks:"), cmp.Or(strings.TrimSpace(body(task.Status.Message.Text())), "for more input"))
		fmt.Fprintf(a.stderr, "  answer with: %s send --task %s \"…\"\n", a.self(), id)
		return
	}
	a.printPermission(q)
	fmt.Fprintln(a.stderr, "  answer with:")
	for _, o := range q.Options {
		fmt.Fprintf(a.stderr, "    %s send --task %s %s   %s\n", a.self(), id, text.ShellQuote(oneLine(o.ID)), s.dim("# "+oneLine(o.Name)))
	}
}

func (a *app) printPermission(q *hub.PermissionData) {
	s := a.errStyle
	asks := "The agent asks for permission:"
	if q.Sender != nil {
		asks = "Somebody else asks:"
	}
	title := oneLine(q.Title)
	if width := a.columns(a.stderr); width > 0 {
		title = strings.TrimPrefix(strings.TrimRight(hanging(asks+" ", "  ", title, width), "\n"), asks+" ")
	}
	fmt.Fprintf(a.stderr, "%s %s\n", s.yellow(asks), s.bold(title))
	if q.Tool != "" {
		fmt.Fprintf(a.stderr, "  tool   %s\n", oneLine(q.Tool))
	}
	shown := 0
	for _, line := range describeInput(q.Input) {
		if shown += len([]rune(line.text)) + 1; shown > maxInput {
			fmt.Fprintln(a.stderr, "  … more is not shown; see the JSON: "+a.self()+" task show --format json")
			break
		}
		fmt.Fprintf(a.stderr, "  %s\n", line.paint(s))
	}
}

// askUser asks the user a task's question. It returns the answer, nil without one.
func (a *app) askUser(ctx context.Context, task *dialect.Task) (*dialect.Part, error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	q := permission(task)
	if q == nil {
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("The agent asks:"), strings.TrimSpace(body(task.Status.Message.Text())))
		line, err := a.readLine(ctx, "> ")
		if errors.Is(err, errInterrupted) {
			return nil, a.answerLater(task)
		}
		if err != nil || strings.TrimSpace(line) == "" {
			return nil, err
		}
		part := dialect.TextPart(line)
		return &part, nil
	}
	a.printPermission(q)
	for i, o := range q.Options {
		fmt.Fprintf(a.stderr, "  %s %s\n", a.errStyle.bold(strconv.Itoa(i+1)), oneLine(o.Name))
	}
	for {
		line, err := a.readLine(ctx, fmt.Sprintf("y, n or 1-%d? ", len(q.Options)))
		if errors.Is(err, errInterrupted) {
			return nil, a.answerLater(task)
		}
		if err != nil || strings.TrimSpace(line) == "" {
			return nil, err
		}
		if o, ok := optionOf(q.Options, line); ok {
			part := dialect.DataPart(map[string]any{"optionId": o.ID, "requestId": q.RequestID})
			return &part, nil
		}
		fmt.Fprintf(a.stderr, "  y, n, 1-%d or the beginning of an answer; an empty line leaves it open\n", len(q.Options))
	}
}

// answerLater is the result of a Ctrl-C at a question, which stays open.
func (a *app) answerLater(task *dialect.Task) error {
	return &failure{Exit: exitInterrupted, Kind: "interrupted", Message: "the agent still waits for the answer",
		Remedy: fmt.Sprintf("answer later with: %s send --task %s ANSWER; or stop it with: %s task cancel %s", a.self(), plain(task.ID), a.self(), plain(task.ID))}
}

// optionOf returns the option that a person's answer selects: y and n, a number from 1, an id, or the only name that
// begins with it.
func optionOf(options []runner.PermissionOption, answer string) (runner.PermissionOption, bool) {
	answer = strings.ToLower(strings.TrimSpace(answer))
	switch n, err := strconv.Atoi(answer); {
	case answer == "":
		return runner.PermissionOption{}, false
	case err == nil && n >= 1 && n <= len(options):
		return options[n-1], true
	case answer == "y" || answer == "yes":
		return runner.Choose(options, runner.Allow)
	case answer == "n" || answer == "no":
		return runner.Choose(options, runner.Reject)
	}
	var found []runner.PermissionOption
	for _, o := range options {
		name := strings.ToLower(oneLine(o.Name))
		if name == answer || strings.ToLower(o.ID) == answer {
			return o, true
		}
		if strings.HasPrefix(name, answer) {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		return runner.PermissionOption{}, false
	}
	return found[0], true
}

// readLine reads one line from the user; at the end of the input it returns an empty one.
func (a *app) readLine(ctx context.Context, prompt string) (string, error) {
	if a.lines == nil {
		a.lines = bufio.NewReader(a.stdin)
	}
	return a.readLineFrom(ctx, a.lines, prompt)
}

func (a *app) readLineFrom(ctx context.Context, from *bufio.Reader, prompt string) (string, error) {
	fmt.Fprint(a.stderr, prompt)
	type input struct {
		line string
		err  error
	}
	lines := make(chan input, 1)
	go func() { // a read from a terminal cannot be canceled: it ends with the process
		line, err := from.ReadString('\n')
		lines <- input{strings.TrimRight(line, "\r\n"), err}
	}()
	select {
	case in := <-lines:
		if errors.Is(in.err, io.EOF) {
			fmt.Fprintln(a.stderr)
			return in.line, nil
		}
		return in.line, in.err
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return "", context.Cause(ctx)
	}
}
