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
	s, id := a.errStyle, plain(task.ID)
	q := permission(task)
	if q == nil {
		fmt.Fprintf(a.stderr, "%s %s\n", s.yellow("The agent asks:"), cmp.Or(strings.TrimSpace(plain(task.Status.Message.Text())), "for more input"))
		fmt.Fprintf(a.stderr, "  answer with: %s send --task %s \"…\"\n", a.self(), id)
		return
	}
	a.printPermission(q)
	fmt.Fprintln(a.stderr, "  answer with:")
	for _, o := range q.Options {
		fmt.Fprintf(a.stderr, "    %s send --task %s %s   %s\n", a.self(), id, text.ShellQuote(plain(o.ID)), s.dim("# "+oneLine(o.Name)))
	}
}

func (a *app) printPermission(q *hub.PermissionData) {
	s := a.errStyle
	fmt.Fprintf(a.stderr, "%s %s\n", s.yellow("The agent asks for permission:"), s.bold(oneLine(q.Title)))
	if q.Tool != "" {
		fmt.Fprintf(a.stderr, "  tool   %s\n", oneLine(q.Tool))
	}
	if q.Input != nil {
		fmt.Fprintf(a.stderr, "  input  %s\n", indent(describeInput(q.Input)))
	}
}

// maxInput bounds how much of a tool's input a question shows, in characters. The question
// says how much is cut: the user should know that some of it is hidden.
const maxInput = 4000

func describeInput(input any) string {
	m, _ := input.(map[string]any)
	text, ok := m["command"].(string)
	if !ok || text == "" || len(m) > 1 {
		raw, err := json.MarshalIndent(input, "", "  ")
		if err != nil {
			return "(cannot be shown)"
		}
		text = string(raw)
	}
	text = plain(text)
	if runes := []rune(text); len(runes) > maxInput {
		return string(runes[:maxInput]) + fmt.Sprintf("\n… %d more characters are not shown", len(runes)-maxInput)
	}
	return text
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n         ") }

// askUser asks the user a task's question. It returns the answer, nil without one.
func (a *app) askUser(ctx context.Context, task *dialect.Task) (*dialect.Part, error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	q := permission(task)
	if q == nil {
		fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.yellow("The agent asks:"), strings.TrimSpace(plain(task.Status.Message.Text())))
		line, err := a.readLine(ctx, "> ")
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
		line, err := a.readLine(ctx, fmt.Sprintf("1-%d? ", len(q.Options)))
		if err != nil || strings.TrimSpace(line) == "" {
			return nil, err
		}
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && n >= 1 && n <= len(q.Options) {
			part := dialect.DataPart(map[string]any{"optionId": q.Options[n-1].ID, "requestId": q.RequestID})
			return &part, nil
		}
		fmt.Fprintf(a.stderr, "  a number from 1 to %d, or nothing to decide later\n", len(q.Options))
	}
}

// readLine reads one line from the user; at the end of the input it returns an empty one.
func (a *app) readLine(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(a.stderr, prompt)
	type input struct {
		line string
		err  error
	}
	lines := make(chan input, 1)
	if a.lines == nil {
		a.lines = bufio.NewReader(a.stdin)
	}
	go func() { // a read from a terminal cannot be canceled: it ends with the process
		line, err := a.lines.ReadString('\n')
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
