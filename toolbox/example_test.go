package toolbox_test

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/toolbox"
)

type lintArguments struct {
	File string `json:"file" jsonschema:"the file to check"`
}

type lintResult struct {
	Problems int `json:"problems"`
}

// Venus offers a Go function as a tool; mars calls it.
func Example() {
	ctx := context.Background()
	box := toolbox.New(toolbox.Options{})
	venus, err := box.Provider("venus")
	if err != nil {
		panic(err)
	}
	defer venus.Close()
	err = toolbox.AddFunc(venus, "lint", "Counts the problems of a file.",
		func(_ context.Context, _ *toolbox.Call, in lintArguments) (lintResult, error) {
			return lintResult{Problems: len(in.File)}, nil
		})
	if err != nil {
		panic(err)
	}

	for _, t := range box.Tools("mars") {
		fmt.Println(t.Name, "of", t.SourceAgent)
	}
	result, err := box.Call(ctx, "mars", "venus.lint", json.RawMessage(`{"file":"a.go"}`), nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Content[0].(*mcp.TextContent).Text)
	_, err = box.Call(ctx, "mars", "venus.lint", json.RawMessage(`{}`), nil)
	fmt.Println(toolbox.CodeOf(err))
	// Output:
	// venus.lint of venus
	// {"problems":4}
	// INVALID_ARGUMENTS
}

// Any MCP client can use the tools, resources and prompts of the box.
func ExampleBox_Serve() {
	ctx := context.Background()
	box := toolbox.New(toolbox.Options{})
	venus, err := box.Provider("venus")
	if err != nil {
		panic(err)
	}
	defer venus.Close()
	notes := &mcp.Resource{URI: "notes:///today", Name: "today", MIMEType: "text/plain"}
	if err := venus.AddResource(notes, toolbox.Text(func(context.Context, string) (string, error) { return "buy milk", nil })); err != nil {
		panic(err)
	}

	server := mcp.NewServer(&mcp.Implementation{Name: "box", Version: "1"}, nil)
	stop := box.Serve(server, "mars")
	defer stop()
	clientSide, serverSide := mcp.NewInMemoryTransports()
	serving, err := server.Connect(ctx, serverSide, nil)
	if err != nil {
		panic(err)
	}
	defer serving.Wait()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "mars", Version: "1"}, nil).Connect(ctx, clientSide, nil)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	result, err := client.ReadResource(ctx, &mcp.ReadResourceParams{URI: "notes:///today"})
	if err != nil {
		panic(err)
	}
	fmt.Println(result.Contents[0].MIMEType, result.Contents[0].Text)
	// Output: text/plain buy milk
}
