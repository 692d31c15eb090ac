package terminal

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/screens"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// action is what a key does with what is selected.
type action struct {
	key, hint, help string
	applies         func(s subject) bool
	do              func(m *model, s subject) tea.Cmd
}

// actions are the keys besides those of the frame, in the order of the hints.
var actions = withWords([]action{
	{key: "a", applies: asks, do: func(m *model, s subject) tea.Cmd { return m.choose(s, runner.Allow) }},
	{key: "d", applies: func(s subject) bool { return asks(s) || s.item != "" || s.dismissible != "" }, do: (*model).deny},
	{key: "t", applies: waitsForUser, do: (*model).answer},
	{key: "r", applies: retries, do: (*model).again},
	{key: "c", applies: running, do: (*model).cancel},
	{key: "b", applies: func(s subject) bool { return s.claim != "" }, do: (*model).breakClaim},
	{key: "w", applies: func(s subject) bool { return s.thread != "" || s.agent != "" && s.document == "" && s.item == "" }, do: (*model).write},
	{key: "m", applies: func(s subject) bool { return s.session != "" }, do: func(m *model, s subject) tea.Cmd { return m.writeIn("mail:"+s.session, "Mail to "+clean(s.agent)) }},
	{key: "e", applies: func(s subject) bool { return s.document != "" }, do: (*model).edit},
	{key: "D", hint: "directory", help: "open the directory of a task in a shell", applies: func(s subject) bool { return s.dir != "" }, do: func(m *model, s subject) tea.Cmd { return m.openDir(s.dir) }},
})

// withWords adds the words of the contract.
func withWords(list []action) []action {
	for i := range list {
		for _, k := range screens.Keys() {
			if k.Key == list[i].key {
				list[i].hint, list[i].help = k.Word, k.Does
			}
		}
	}
	return list
}

// retries reports whether something has failed that can be tried again.
func retries(s subject) bool {
	return s.item != "" || s.task != "" && (roleOf(s.state) == bad || s.state == string(dialect.StateCanceled))
}

func asks(s subject) bool         { return s.question != nil }
func waitsForUser(s subject) bool { return s.task != "" && roleOf(s.state) == waits }
func running(s subject) bool {
	return s.task != "" && (roleOf(s.state) == busy || roleOf(s.state) == waits)
}

// act does what a key means for the subject.
func (m *model) act(key string) tea.Cmd {
	s := m.subject()
	i := slices.IndexFunc(actions, func(a action) bool { return a.key == key })
	if i < 0 {
		return nil
	}
	a := actions[i]
	if !a.applies(s) {
		return m.say("Nothing here to "+a.hint+".", dim)
	}
	if !m.up {
		return m.say("The hub is away; do that when it is back.", bad)
	}
	return a.do(m, s)
}

// run calls the hub and reports the result.
func (m *model) run(done string, do func(ctx context.Context, h Hub) error) tea.Cmd {
	return func() tea.Msg {
		if err := m.link.call(do); err != nil {
			return noticeMsg{"This was not done: " + clean(err.Error()), bad}
		}
		return noticeMsg{done, good}
	}
}

func (m *model) send(done string, msg dialect.Message) tea.Cmd {
	msg.Kind, msg.MessageID, msg.Role = dialect.KindMessage, uuid.NewString(), dialect.RoleUser
	return m.run(done, func(ctx context.Context, h Hub) error {
		_, err := h.Send(ctx, dialect.SendParams{Message: msg, Configuration: &dialect.SendConfig{Blocking: new(false)}})
		return err
	})
}

func (m *model) choose(s subject, kinds []runner.PermissionKind) tea.Cmd {
	o, ok := runner.Choose(s.question.Options, kinds)
	if !ok {
		return m.say("The agent offers no such answer; t answers in words.", waits)
	}
	part := dialect.DataPart(map[string]any{"optionId": o.ID, "requestId": s.question.RequestID})
	return m.send("Answered: "+clean(o.Name), dialect.Message{TaskID: s.task, Parts: []dialect.Part{part}})
}

// deny denies what an agent asks for, dismisses a failed loop, or removes failed work for good, after a question.
func (m *model) deny(s subject) tea.Cmd {
	if s.dismissible != "" {
		return m.run("Dismissed.", func(ctx context.Context, h Hub) error { return h.DismissLoop(ctx, s.dismissible) })
	}
	if s.item == "" {
		return m.choose(s, runner.Reject)
	}
	return m.confirm("Discard this work for good?", "Discarded.", func(ctx context.Context, h Hub) error { return h.DiscardWork(ctx, s.item) })
}

// confirm calls the hub if the user says yes.
func (m *model) confirm(question, done string, do func(ctx context.Context, h Hub) error) tea.Cmd {
	return m.ask(question+" y or n:", func(text string) tea.Cmd {
		if !strings.HasPrefix(strings.ToLower(text), "y") {
			return nil
		}
		return m.run(done, do)
	})
}

// ask opens a prompt.
func (m *model) ask(label string, submit func(text string) tea.Cmd) tea.Cmd {
	m.prompt = &prompt{label: label, submit: func(text string) tea.Cmd {
		if text == "" {
			return nil
		}
		return submit(text)
	}}
	return nil
}

func (m *model) answer(s subject) tea.Cmd {
	return m.ask("Answer:", func(text string) tea.Cmd {
		return m.send("Answered.", dialect.Message{TaskID: s.task, Parts: []dialect.Part{dialect.TextPart(text)}})
	})
}

// writeIn writes in a channel or mail.
func (m *model) writeIn(thread, label string) tea.Cmd {
	return m.ask(label+":", func(text string) tea.Cmd {
		return m.run("Written.", func(ctx context.Context, h Hub) error {
			written, err := h.WriteThread(ctx, dialect.WriteThreadParams{ThreadID: thread, Text: text})
			if err == nil && written.Warning != "" {
				err = fmt.Errorf("it is written, but: %s", written.Warning)
			}
			return err
		})
	})
}

func (m *model) write(s subject) tea.Cmd {
	if s.thread != "" {
		return m.writeIn(s.thread, "Message")
	}
	return m.ask("To "+clean(s.agent)+":", func(text string) tea.Cmd {
		return m.send("Sent to "+clean(s.agent)+".", dialect.Message{
			ContextID: s.context, Parts: []dialect.Part{dialect.TextPart(text)}, Metadata: map[string]any{hub.MetaTargetAgent: s.agent},
		})
	})
}

func (m *model) cancel(s subject) tea.Cmd {
	return m.confirm("Cancel this task?", "Canceled.", func(ctx context.Context, h Hub) error {
		_, err := h.Cancel(ctx, s.task)
		return err
	})
}

// breakClaim ends an agent's claim of files, after a question.
func (m *model) breakClaim(s subject) tea.Cmd {
	return m.confirm("End the claim of "+clean(s.holder)+"?", "Ended; its holder has mail.", func(ctx context.Context, h Hub) error {
		_, err := h.BreakFileClaim(ctx, s.claim)
		return err
	})
}

// again puts failed work back into its queue, or sends the first message of a task to its agent again, as a new task of
// the same conversation.
func (m *model) again(s subject) tea.Cmd {
	if s.item != "" {
		return m.run("It is in its queue again.", func(ctx context.Context, h Hub) error { return h.RetryWork(ctx, s.item) })
	}
	return m.run("Sent again.", func(ctx context.Context, h Hub) error {
		t, err := h.Task(ctx, s.task)
		if err != nil {
			return err
		}
		if len(t.History) == 0 {
			return fmt.Errorf("the task has no message")
		}
		msg := dialect.Message{
			Kind: dialect.KindMessage, MessageID: uuid.NewString(), Role: dialect.RoleUser, Parts: t.History[0].Parts,
			ContextID: t.ContextID, Metadata: map[string]any{hub.MetaTargetAgent: s.agent},
		}
		_, err = h.Send(ctx, dialect.SendParams{Message: msg, Configuration: &dialect.SendConfig{Blocking: new(false)}})
		return err
	})
}

// edit sets a value of a document: its path has the root and keys, separated by points.
func (m *model) edit(s subject) tea.Cmd {
	return m.ask("PATH = VALUE:", func(text string) tea.Cmd {
		path, value, ok := strings.Cut(text, "=")
		keys := strings.Split(strings.TrimSpace(path), ".")
		if !ok || len(keys) < 2 {
			return m.say("An edit is such as: plan.title = the new title", waits)
		}
		value = strings.TrimSpace(value)
		var v any = value
		var parsed any
		if json.Unmarshal([]byte(value), &parsed) == nil {
			v = parsed
		}
		return m.run("Changed.", func(ctx context.Context, h Hub) error {
			_, err := h.EditDocument(ctx, s.document, []documents.Edit{{Op: documents.OpSet, Path: keys, Value: v}})
			return err
		})
	})
}

// words are what the palette completes.
func (m *model) words() []string {
	words := []string{"quit", "help", "mouse", "send ", "task "}
	for _, s := range m.screens {
		words = append(words, strings.ToLower(s.name))
	}
	return words
}

// complete completes the text to the first word that begins with it.
func (p *prompt) complete(words []string) {
	for _, w := range words {
		if t := strings.ToLower(string(p.text)); t != "" && strings.HasPrefix(w, t) {
			p.text = []rune(w)
			p.at = len(p.text)
			return
		}
	}
}

func (m *model) palette() {
	m.prompt = &prompt{label: ":", submit: m.command}
}

// command runs a line of the palette.
func (m *model) command(text string) tea.Cmd {
	verb, rest, _ := strings.Cut(text, " ")
	rest = strings.TrimSpace(rest)
	switch verb = strings.ToLower(verb); verb {
	case "":
		return nil
	case "q", "quit":
		return m.quit()
	case "help":
		m.help = true
		return nil
	case "mouse":
		m.mouse = !m.mouse
		return nil
	case "task":
		if rest == "" {
			return m.say("Write: task ID", waits)
		}
		return m.openPage(taskPage(subject{task: rest}))
	case "send":
		agent, message, _ := strings.Cut(rest, " ")
		if agent == "" || message == "" {
			return m.say("Write: send AGENT MESSAGE", waits)
		}
		return m.send("Sent to "+clean(agent)+".", dialect.Message{
			Parts: []dialect.Part{dialect.TextPart(message)}, Metadata: map[string]any{hub.MetaTargetAgent: agent},
		})
	}
	for i, s := range m.screens {
		if strings.HasPrefix(strings.ToLower(s.name), strings.ToLower(text)) {
			return m.show(i)
		}
	}
	return m.say(fmt.Sprintf("There is no command %q: quit, help, mouse, send, task, or the name of a screen.", clean(text)), waits)
}
