// Asker is a coding agent without a model, for tests of clients: over the Agent Client Protocol, it asks for permission
// in each turn and answers with the decision. ASKER_TITLE is what it asks instead.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coder/acp-go-sdk"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		fmt.Println("1.0.0")
		return
	}
	a := &asker{}
	a.conn = acp.NewAgentSideConnection(a, os.Stdout, os.Stdin)
	<-a.conn.Done()
}

type asker struct {
	acp.Agent // methods that the hub does not call
	conn      *acp.AgentSideConnection
}

func (*asker) Initialize(context.Context, acp.InitializeRequest) (acp.InitializeResponse, error) {
	return acp.InitializeResponse{ProtocolVersion: acp.ProtocolVersionNumber}, nil
}

func (*asker) NewSession(context.Context, acp.NewSessionRequest) (acp.NewSessionResponse, error) {
	return acp.NewSessionResponse{SessionId: "s1"}, nil
}

func (*asker) Cancel(context.Context, acp.CancelNotification) error { return nil }

func (a *asker) Prompt(ctx context.Context, p acp.PromptRequest) (acp.PromptResponse, error) {
	title, command := "Run make clean", "make clean"
	if other := os.Getenv("ASKER_TITLE"); other != "" {
		title, command = other, other
	}
	answer, err := a.conn.RequestPermission(ctx, acp.RequestPermissionRequest{
		SessionId: p.SessionId,
		ToolCall: acp.ToolCallUpdate{
			ToolCallId: "t1", Title: &title, Kind: acp.Ptr(acp.ToolKindExecute), RawInput: map[string]any{"command": command},
		},
		Options: []acp.PermissionOption{
			{OptionId: "reject", Name: "Reject", Kind: acp.PermissionOptionKindRejectOnce},
			{OptionId: "allow", Name: "Allow once", Kind: acp.PermissionOptionKindAllowOnce},
		},
	})
	if err != nil {
		return acp.PromptResponse{}, err
	}
	text := "The question was cancelled."
	if answer.Outcome.Selected != nil {
		text = "You chose " + string(answer.Outcome.Selected.OptionId) + "."
	}
	err = a.conn.SessionUpdate(ctx, acp.SessionNotification{SessionId: p.SessionId, Update: acp.UpdateAgentMessageText(text)})
	return acp.PromptResponse{StopReason: acp.StopReasonEndTurn}, err
}
