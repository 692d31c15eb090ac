// This program uses a Parley MCP server with the MCP SDK for Go: it lists the tools, registers, sends a message to a
// channel, and reads the channel.
//
//	go run ./examples/mcp/go                                # starts "parley mcp" for the current directory's project
//	go run ./examples/mcp/go "http://127.0.0.1:8080/mcp?project=$PWD"
//
// Over HTTP, the hub's token, if it requires one, is in the environment: PARLEY_TOKEN.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, transport(os.Args[1:])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// transport returns the one for the URL in the arguments, or for a process of its own.
func transport(args []string) mcp.Transport {
	if len(args) == 0 {
		command := exec.Command("parley", "mcp")
		command.Stderr = os.Stderr
		return &mcp.CommandTransport{Command: command}
	}
	return &mcp.StreamableClientTransport{Endpoint: args[0], HTTPClient: &http.Client{Transport: bearer(os.Getenv("PARLEY_TOKEN"))}}
}

// bearer adds a token to requests; "" adds none.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

func run(ctx context.Context, transport mcp.Transport) error {
	client := mcp.NewClient(&mcp.Implementation{Name: "example", Version: "1"}, nil)
	connection, err := client.Connect(ctx, transport, nil)
	if err != nil {
		return err
	}
	defer connection.Close()
	fmt.Println("server:", connection.InitializeResult().ServerInfo.Name)

	for tool, err := range connection.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		fmt.Println("tool:", tool.Name)
	}

	agent := &agent{connection: connection}
	for _, step := range []struct {
		tool      string
		arguments map[string]any
	}{
		// The name under which others see the messages.
		{"set_handle", map[string]any{"handle": "go-example"}},
		{"send_message", map[string]any{"channel": "roadmap", "message": "Hello from Go."}},
		{"read_messages", map[string]any{"channel": "roadmap", "limit": 5}},
	} {
		text, err := agent.call(ctx, step.tool, step.arguments)
		if err != nil {
			return err
		}
		fmt.Println(text)
	}
	return nil
}

// agent calls tools as one agent.
type agent struct {
	connection *mcp.ClientSession
	session    any // the token of set_handle
}

func (a *agent) call(ctx context.Context, tool string, arguments map[string]any) (string, error) {
	if a.session != nil {
		arguments["session"] = a.session
	}
	result, err := a.connection.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, content := range result.Content {
		if t, ok := content.(*mcp.TextContent); ok {
			text.WriteString(t.Text)
		}
	}
	if result.IsError {
		return "", errors.New(text.String())
	}
	// Since revision 2026-07-28, HTTP has no sessions: each call then needs this token.
	if structured, ok := result.StructuredContent.(map[string]any); ok && structured["session"] != nil {
		a.session = structured["session"]
	}
	return text.String(), nil
}
