package conformance

//lint:file-ignore SA1019 sampling and roots are tested too

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Since 2026-07-28 a server does not call its client: a result requests input, and the
// client repeats its request with it. The client returns the server's state, which is
// sealed.

// seal signs that state with a key that clients do not have.
type seal [32]byte

func newSeal() (s seal) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// close seals a tool's state.
func (s seal) close(tool, state string) string {
	return base64.RawURLEncoding.EncodeToString(s.sum(tool, state)) + "." + state
}

// open returns the state that was sealed for the tool, or the error for the client.
func (s seal) open(tool, sealed string) (string, error) {
	sum, state, _ := strings.Cut(sealed, ".")
	given, err := base64.RawURLEncoding.DecodeString(sum)
	if err != nil || !hmac.Equal(given, s.sum(tool, state)) {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not what the server sent"}
	}
	return state, nil
}

func (s seal) sum(tool, state string) []byte {
	mac := hmac.New(sha256.New, s[:])
	mac.Write([]byte(tool + "\x00" + state))
	return mac.Sum(nil)
}

// addInputTools adds the tools and the prompt that need input.
func addInputTools(server *mcp.Server, seal seal) {
	const prefix = "test_input_required_result_"
	addTool(server, &mcp.Tool{Name: prefix + "elicitation", Description: "Asks for a name and greets."}, greet)
	addTool(server, &mcp.Tool{Name: prefix + "sampling", Description: "Asks the client's model for a capital."}, askCapital)
	addTool(server, &mcp.Tool{Name: prefix + "list_roots", Description: "Asks for the client's roots."}, askRoots)
	addTool(server, &mcp.Tool{Name: prefix + "multiple_inputs", Description: "Asks for a name, a greeting and roots at once."}, seal.askAll)
	addTool(server, &mcp.Tool{Name: prefix + "multi_round", Description: "Asks for a name, then for a colour."}, seal.askTwice)
	addTool(server, &mcp.Tool{Name: prefix + "capabilities", Description: "Asks for what the client can give."}, askPossible)
	for _, name := range []string{"request_state", "tampered_state"} {
		addTool(server, &mcp.Tool{Name: prefix + name, Description: "Asks to confirm, and checks its state."}, seal.confirm)
	}
	server.AddPrompt(&mcp.Prompt{Name: prefix + "prompt", Description: "Asks for the prompt's context."}, askContext)
}

func needs(requests mcp.InputRequestMap) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: requests}
}

// ask returns a request to the user for a value.
func ask(message, name, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: form([]string{name}, object{name: object{"type": kind}})}
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

func greet(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if name, ok := said[string](req.Params.InputResponses, "user_name", "name"); ok && name != "" {
		return answerf("Hello, %s!", name), nil
	}
	return needs(mcp.InputRequestMap{"user_name": askName()}), nil
}

func askCapital(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if capital, ok := sampled(req.Params.InputResponses, "capital_question"); ok {
		return answerf("The model says: %s", capital), nil
	}
	return needs(mcp.InputRequestMap{"capital_question": question("What is the capital of France?", 100)}), nil
}

func askRoots(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
	if uris, ok := roots(req.Params.InputResponses); ok {
		return answerf("The roots are: %s", strings.Join(uris, ", ")), nil
	}
	return needs(mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}), nil
}

func (s seal) askAll(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
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
	result.RequestState = s.close(req.Params.Name, round)
	return result, nil
}

// confirm requests a confirmation and accepts it only with the state that it sent.
func (s seal) confirm(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
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
	result.RequestState = s.close(req.Params.Name, "state-ok")
	return result, nil
}

// askTwice keeps the name in its state after the first answer.
func (s seal) askTwice(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
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
	result.RequestState = s.close(tool, state)
	return result, nil
}

// askPossible requests only input that the client supports.
func askPossible(_ context.Context, req *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, error) {
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
