package conformance

//lint:file-ignore SA1019 sampling and roots are tested too

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Since 2026-07-28 a server does not call its client: a result requests input, and the client repeats its request
// with it. The client returns the server's state, which must be one that the server has sent.

// states has the states that were sent, by their sealed texts.
type states struct{ sent sync.Map }

type state struct{ tool, value string }

// seal stores a tool's state and returns its sealed text.
func (s *states) seal(tool, value string) string {
	sealed := rand.Text()
	s.sent.Store(sealed, state{tool, value})
	return sealed
}

// open returns the state of a sealed text of the tool, or the error for the client.
func (s *states) open(tool, sealed string) (string, error) {
	sent, _ := s.sent.Load(sealed)
	if of, ok := sent.(state); ok && of.tool == tool {
		return of.value, nil
	}
	return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not what the server sent"}
}

// addInputTools adds the tools and the prompt that need input.
func addInputTools(server *mcp.Server, s *states) {
	const prefix = "test_input_required_result_"
	const confirm = "Asks to confirm, and checks its state."
	addTools(server,
		tool{prefix + "elicitation", "Asks for a name and greets.",
			once(mcp.InputRequestMap{"user_name": askName()}, func(r mcp.InputResponseMap) (string, bool) {
				name, ok := said[string](r, "user_name", "name")
				return "Hello, " + name + "!", ok && name != ""
			})},
		tool{prefix + "sampling", "Asks the client's model for a capital.",
			once(mcp.InputRequestMap{"capital_question": question("What is the capital of France?", 100)}, func(r mcp.InputResponseMap) (string, bool) {
				capital, ok := sampled(r, "capital_question")
				return "The model says: " + capital, ok
			})},
		tool{prefix + "list_roots", "Asks for the client's roots.",
			once(mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}, func(r mcp.InputResponseMap) (string, bool) {
				uris, ok := roots(r)
				return "The roots are: " + strings.Join(uris, ", "), ok
			})},
		tool{prefix + "multiple_inputs", "Asks for a name, a greeting and roots at once.", s.askAll},
		tool{prefix + "multi_round", "Asks for a name, then for a colour.", s.askTwice},
		tool{prefix + "capabilities", "Asks for what the client can give.", askPossible},
		tool{prefix + "request_state", confirm, s.confirm},
		tool{prefix + "tampered_state", confirm, s.confirm},
	)
	server.AddPrompt(&mcp.Prompt{Name: prefix + "prompt", Description: "Asks for the prompt's context."}, askContext)
}

// once returns the handler that requests input until reply has an answer to it.
func once(requests mcp.InputRequestMap, reply func(mcp.InputResponseMap) (string, bool)) handler {
	return func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if answered, ok := reply(req.Params.InputResponses); ok {
			return answer(text(answered)), nil
		}
		return needs(requests), nil
	}
}

func needs(requests mcp.InputRequestMap) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: requests}
}

// ask returns a request to the user for a value.
func ask(message, name, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: form(object{name: object{"type": kind}}, name)}
}

func askName() *mcp.ElicitParams { return ask("What is your name?", "name", "string") }

// said returns the user's value for the request with this key.
func said[T any](responses mcp.InputResponseMap, key, name string) (value T, ok bool) {
	result, isElicited := responses[key].(*mcp.ElicitResult)
	if !isElicited || result == nil || result.Action != "accept" {
		return value, false
	}
	value, ok = result.Content[name].(T)
	return value, ok
}

// sampled returns the answer of the client's model.
func sampled(responses mcp.InputResponseMap, key string) (string, bool) {
	result, ok := responses[key].(*mcp.CreateMessageWithToolsResult)
	if !ok || result == nil || len(result.Content) == 0 {
		return "", false
	}
	content, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		return "", false
	}
	return content.Text, true
}

func roots(responses mcp.InputResponseMap) ([]string, bool) {
	result, ok := responses["client_roots"].(*mcp.ListRootsResult)
	if !ok || result == nil {
		return nil, false
	}
	var uris []string
	for _, root := range result.Roots {
		uris = append(uris, root.URI)
	}
	return uris, true
}

func (s *states) askAll(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	const round = "asked"
	responses := req.Params.InputResponses
	name, hasName := said[string](responses, "user_name", "name")
	greeting, hasGreeting := sampled(responses, "greeting")
	uris, hasRoots := roots(responses)
	if hasName && hasGreeting && hasRoots {
		if _, err := s.open(req.Params.Name, req.Params.RequestState); err != nil {
			return nil, err
		}
		return answerf("%s, %s, of %d roots", greeting, name, len(uris)), nil
	}
	result := needs(mcp.InputRequestMap{
		"user_name": askName(), "greeting": question("Generate a greeting", 50), "client_roots": &mcp.ListRootsParams{},
	})
	result.RequestState = s.seal(req.Params.Name, round)
	return result, nil
}

// confirm requests a confirmation and accepts it only with the state that it sent.
func (s *states) confirm(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if req.Params.RequestState != "" {
		state, err := s.open(req.Params.Name, req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		if ok, answered := said[bool](req.Params.InputResponses, "confirm", "ok"); answered {
			return answerf("%s: confirmed %t", state, ok), nil
		}
	}
	result := needs(mcp.InputRequestMap{"confirm": ask("Please confirm", "ok", "boolean")})
	result.RequestState = s.seal(req.Params.Name, "state-ok")
	return result, nil
}

// askTwice keeps the name in its state after the first answer.
func (s *states) askTwice(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	const first, second = "1:", "2:"
	tool, responses := req.Params.Name, req.Params.InputResponses
	state := first
	if req.Params.RequestState != "" {
		var err error
		if state, err = s.open(tool, req.Params.RequestState); err != nil {
			return nil, err
		}
	}
	if state == first {
		if name, ok := said[string](responses, "step1", "name"); ok {
			state = second + name
		}
	}
	name, named := strings.CutPrefix(state, second)
	if colour, ok := said[string](responses, "step2", "color"); ok && named {
		return answerf("%s likes %s", name, colour), nil
	}
	result := needs(mcp.InputRequestMap{"step1": ask("Step 1: What is your name?", "name", "string")})
	if named {
		result = needs(mcp.InputRequestMap{"step2": ask("Step 2: What is your favorite color?", "color", "string")})
	}
	result.RequestState = s.seal(tool, state)
	return result, nil
}

// askPossible requests only input that the client supports.
func askPossible(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if n := len(req.Params.InputResponses); n > 0 {
		return answerf("%d answers came", n), nil
	}
	requests := mcp.InputRequestMap{}
	if can := req.ClientCapabilities(); can != nil {
		if can.Elicitation != nil {
			requests["user_name"] = askName()
		}
		if can.Sampling != nil {
			requests["greeting"] = question("Generate a greeting", 50)
		}
		if can.RootsV2 != nil {
			requests["client_roots"] = &mcp.ListRootsParams{}
		}
	}
	if len(requests) == 0 {
		return answer(text("the client can give nothing")), nil
	}
	return needs(requests), nil
}

func askContext(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	if given, ok := said[string](req.Params.InputResponses, "user_context", "context"); ok {
		return userPrompt("", text(fmt.Sprintf("Context: %s", given))), nil
	}
	return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{
		"user_context": ask("What context should the prompt use?", "context", "string"),
	}}, nil
}
