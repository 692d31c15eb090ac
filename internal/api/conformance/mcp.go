package conformance

// The official MCP suite also uses what the latest revision deprecates, since earlier revisions have it.
//lint:file-ignore SA1019 logging, sampling and roots are tested too

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	mcphttp "github.com/parleyhub/parley/internal/mcp/http"
)

// mcpPath is the path of the MCP suite's server.
const mcpPath = "/mcp"

// newMCP returns the endpoint for the official MCP suite.
func newMCP(version string) *mcphttp.Handler {
	server := newMCPServer(version)
	all := func(*http.Request) *mcp.Server { return server }
	return mcphttp.New(mcphttp.Options{
		Session: all, Request: all,
		Events: mcp.NewMemoryEventStore(nil), // for test_reconnection, which breaks a stream
	})
}

// newMCPServer returns the server with the tools, resources and prompts that the suite specifies.
func newMCPServer(version string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "parley-conformance", Version: version}, &mcp.ServerOptions{
		CompletionHandler: complete,
		// The SDK stores the subscriptions.
		SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addContentTools(server)
	addClientTools(server)
	addProtocolTools(server)
	addInputTools(server, &states{})
	addResources(server)
	addPrompts(server)
	return server
}

// cities are the completions of an argument.
var cities = []string{"paris", "park", "party"}

func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	found := []string{} // never null
	for _, city := range cities {
		if strings.HasPrefix(city, req.Params.Argument.Value) {
			found = append(found, city)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: found, Total: len(found)}}, nil
}

func addResources(server *mcp.Server) {
	for _, r := range []struct {
		name, description, mimeType, text string
		blob                              []byte
	}{
		{"static-text", "A text that stays.", "text/plain", "This is the content of the static text resource.", nil},
		{"static-binary", "A picture that stays.", "image/png", "", []byte(redPixel)},
		{"watched-resource", "A text to subscribe to.", "text/plain", "Watched resource content", nil},
	} {
		server.AddResource(&mcp.Resource{URI: "test://" + r.name, Name: r.name, Description: r.description, MIMEType: r.mimeType},
			func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return contents(req.Params.URI, r.mimeType, r.text, r.blob), nil
			})
	}
	const prefix, suffix = "test://template/", "/data"
	server.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: prefix + "{id}" + suffix, Name: "template", Description: "Data for any id.", MIMEType: "application/json",
	}, func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, prefix), suffix)
		data, err := json.Marshal(map[string]any{"id": id, "templateTest": true, "data": "Data for ID: " + id})
		if err != nil {
			return nil, fmt.Errorf("encode the data: %w", err)
		}
		return contents(req.Params.URI, "application/json", string(data), nil), nil
	})
}

func contents(uri, mimeType, text string, blob []byte) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: mimeType, Text: text, Blob: blob}}}
}

func addPrompts(server *mcp.Server) {
	required := func(name, description string) *mcp.PromptArgument {
		return &mcp.PromptArgument{Name: name, Description: description, Required: true}
	}
	addPrompt(server, "test_simple_prompt", "A prompt without arguments.", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{text("This is a simple prompt for testing.")}
	})
	addPrompt(server, "test_prompt_with_arguments", "A prompt with two arguments.",
		[]*mcp.PromptArgument{required("arg1", "The first."), required("arg2", "The second.")},
		func(args map[string]string) []mcp.Content {
			return []mcp.Content{text(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"]))}
		})
	addPrompt(server, "test_prompt_with_embedded_resource", "A prompt with a resource in it.",
		[]*mcp.PromptArgument{required("resourceUri", "The resource's URI.")},
		func(args map[string]string) []mcp.Content {
			return []mcp.Content{
				embedded(args["resourceUri"], "text/plain", "Embedded resource content for testing."),
				text("Please process the embedded resource above."),
			}
		})
	addPrompt(server, "test_prompt_with_image", "A prompt with a picture in it.", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{picture(), text("Please analyze the image above.")}
	})
}

func addPrompt(server *mcp.Server, name, description string, arguments []*mcp.PromptArgument, messages func(args map[string]string) []mcp.Content) {
	server.AddPrompt(&mcp.Prompt{Name: name, Description: description, Arguments: arguments},
		func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return userPrompt(description, messages(req.Params.Arguments)...), nil
		})
}

func userPrompt(description string, contents ...mcp.Content) *mcp.GetPromptResult {
	result := &mcp.GetPromptResult{Description: description}
	for _, content := range contents {
		result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: content})
	}
	return result
}

func text(s string) mcp.Content { return &mcp.TextContent{Text: s} }

func picture() mcp.Content { return &mcp.ImageContent{MIMEType: "image/png", Data: []byte(redPixel)} }

func sound() mcp.Content { return &mcp.AudioContent{MIMEType: "audio/wav", Data: []byte(silence)} }

func embedded(uri, mimeType, text string) mcp.Content {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: uri, MIMEType: mimeType, Text: text}}
}

// redPixel is a PNG file with one pixel. It is a constant because an encoder of images is 90 kB of the program.
const redPixel = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\b\x02\x00\x00\x00\x90wS\xde" +
	"\x00\x00\x00\x10IDATx\x9cb\xfa\xcf\xc0\x00\b\x00\x00\xff\xff\x03\t\x01\x02X\xb6\xd5P\x00\x00\x00\x00IEND\xaeB`\x82"

// silence is a WAV file with one sample: 8 kHz, one channel, 16 bits.
const silence = "RIFF\x26\x00\x00\x00WAVE" +
	"fmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00" +
	"data\x02\x00\x00\x00\x00\x00"
