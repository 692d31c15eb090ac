// This program talks to an agent of a Parley hub with the A2A SDK for Go: it reads the agent's card, streams the answer
// to a prompt, and answers the agent's questions.
//
//	go run ./examples/a2a/go http://127.0.0.1:8080/agents/claude-code "Create hello.txt."
//
// The hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: a2a AGENT-URL PROMPT")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, agentURL, prompt string) error {
	// Cards are readable without the token. This one is at AGENT-URL/.well-known/agent-card.json.
	card, err := agentcard.DefaultResolver.Resolve(ctx, agentURL)
	if err != nil {
		return err
	}
	fmt.Println("agent:", card.Name)

	client, err := a2aclient.NewFromCard(ctx, card)
	if err != nil {
		return err
	}
	defer client.Destroy() //nolint:errcheck // the program ends
	if token := os.Getenv("PARLEY_TOKEN"); token != "" {
		ctx = a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{"Authorization": {"Bearer " + token}})
	}

	answers := bufio.NewScanner(os.Stdin)
	message := a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(prompt))
	for {
		question, err := stream(ctx, client, message)
		if err != nil || question == nil {
			return err
		}
		// The stream ends with a question. The answer is a message to the same task, whose events are streamed again.
		message = a2a.NewMessageForTask(a2a.MessageRoleUser, question, answer(question, answers))
	}
}

// stream sends a message and prints the events of its task. If the task ends with a question, it returns that event.
func stream(ctx context.Context, client *a2aclient.Client, message *a2a.Message) (question *a2a.TaskStatusUpdateEvent, err error) {
	for event, err := range client.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: message}) {
		if err != nil {
			return nil, err
		}
		switch e := event.(type) {
		case *a2a.Task: // the first event
			fmt.Println("task:", e.ID)
		case *a2a.TaskArtifactUpdateEvent: // a piece of the answer
			for _, part := range e.Artifact.Parts {
				fmt.Print(part.Text())
			}
		case *a2a.TaskStatusUpdateEvent:
			if e.Status.State.Terminal() {
				fmt.Println("\nstate:", e.Status.State)
			}
			if e.Status.State == a2a.TaskStateInputRequired {
				question = e
			}
		}
	}
	return question, nil
}

// permission is the data part of a question that the agent asks before it uses a tool.
type permission struct {
	title   string
	options []map[string]any // with id, name and kind
}

// answer prints a question and reads the answer from standard input; without one it allows the tool once.
func answer(question *a2a.TaskStatusUpdateEvent, answers *bufio.Scanner) *a2a.Part {
	p, isPermission := permissionOf(question.Status.Message)
	if !isPermission { // the agent asks something else, in words
		for _, part := range question.Status.Message.Parts {
			fmt.Println(part.Text())
		}
		answers.Scan()
		return a2a.NewTextPart(answers.Text())
	}
	fmt.Println("question:", p.title)
	choice := ""
	for _, option := range p.options {
		fmt.Printf("  %v: %v\n", option["id"], option["name"])
		if option["kind"] == "allow_once" {
			choice = fmt.Sprint(option["id"])
		}
	}
	if answers.Scan() && strings.TrimSpace(answers.Text()) != "" {
		choice = strings.TrimSpace(answers.Text())
	}
	fmt.Println("answer:", choice)
	return a2a.NewDataPart(map[string]any{"optionId": choice})
}

func permissionOf(message *a2a.Message) (p permission, ok bool) {
	for _, part := range message.Parts {
		data, isData := part.Content.(a2a.Data)
		if !isData || part.Metadata["parley.permission"] != true {
			continue
		}
		value, _ := data.Value.(map[string]any)
		p.title, _ = value["title"].(string)
		options, _ := value["options"].([]any)
		for _, option := range options {
			if o, isObject := option.(map[string]any); isObject {
				p.options = append(p.options, o)
			}
		}
		return p, true
	}
	return p, false
}
