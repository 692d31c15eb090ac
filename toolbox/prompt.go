package toolbox

import (
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/text"
)

// Renderer renders a prompt with its arguments.
type Renderer func(ctx context.Context, arguments map[string]string) (*mcp.GetPromptResult, error)

// prompt is a registered prompt. It does not change.
type prompt struct {
	entry
	arguments []*mcp.PromptArgument
	render    Renderer
}

var placeholder = text.Pattern(`\{\{\s*([A-Za-z0-9_.-]+)\s*\}\}`)

// AddPrompt offers a prompt template under the name "agent.name". "{{argument}}" in the body is replaced by the
// value of this argument of x, once: placeholders in values stay. x is not kept. Errors are [*Error]s.
func (p *Provider) AddPrompt(x *mcp.Prompt, body string) error {
	if x == nil {
		return p.incomplete("a prompt", "body")
	}
	if len(body) > MaxDescription || !utf8.ValidString(body) {
		return errorf(CodeInvalid, x.Name, p.id, "the body of prompt %q must be UTF-8 of at most %d bytes", x.Name, MaxDescription)
	}
	for _, m := range placeholder().FindAllStringSubmatch(body, -1) {
		if !slices.ContainsFunc(x.Arguments, func(a *mcp.PromptArgument) bool { return a.Name == m[1] }) {
			return errorf(CodeInvalid, x.Name, p.id, "the placeholder %s of prompt %q is not one of its arguments", m[0], x.Name)
		}
	}
	description := x.Description
	return p.AddRenderer(x, func(_ context.Context, arguments map[string]string) (*mcp.GetPromptResult, error) {
		text := placeholder().ReplaceAllStringFunc(body, func(found string) string {
			return arguments[strings.TrimSpace(found[2:len(found)-2])]
		})
		return &mcp.GetPromptResult{
			Description: description,
			Messages:    []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}},
		}, nil
	})
}

// AddRenderer offers a prompt that a function renders.
func (p *Provider) AddRenderer(x *mcp.Prompt, render Renderer) error {
	return p.add(p.newPrompt(x, render))
}

func (p *Provider) newPrompt(x *mcp.Prompt, render Renderer) (*prompt, error) {
	if x == nil || render == nil {
		return nil, p.incomplete("a prompt", "renderer")
	}
	name, err := p.qualify(x.Name)
	if err != nil {
		return nil, err
	}
	if err := p.describe(name, x.Description, x.Title); err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, a := range x.Arguments {
		if a == nil || a.Name == "" || seen[a.Name] {
			return nil, errorf(CodeInvalid, name, p.id, "the arguments of prompt %q must have different names", name)
		}
		seen[a.Name] = true
		if err := p.describe(name, a.Name, a.Title, a.Description); err != nil {
			return nil, err
		}
	}
	shown := *x
	shown.Name = name
	return &prompt{entry{p, kindPrompt, name, &shown, p.id}, x.Arguments, render}, nil
}

// Prompt is a prompt in a list.
type Prompt struct {
	*mcp.Prompt // with the qualified name; do not change it
	SourceAgent string
}

// Prompts lists the prompts that a caller may see, by name.
func (b *Box) Prompts(caller string) []Prompt {
	return listed(b, caller, kindPrompt, func(x *mcp.Prompt, from string) Prompt { return Prompt{x, from} })
}

// Render renders a prompt. A missing optional argument is empty. Errors are [*Error]s:
// CodeArguments names missing and unknown arguments.
func (b *Box) Render(ctx context.Context, caller, name string, arguments map[string]string) (*mcp.GetPromptResult, error) {
	found, _ := b.find(caller, kindPrompt, name)
	x, known := found.(*prompt)
	if !known {
		return nil, errorf(CodePromptNotFound, name, "", "there is no prompt %q", name)
	}
	if err := x.checkArguments(arguments); err != nil {
		return nil, err
	}
	result, err := guard(ctx, x.Provider, name, func(ctx context.Context) (*mcp.GetPromptResult, error) { return x.render(ctx, arguments) })
	if err == nil && (result == nil || slices.Contains(result.Messages, nil)) {
		return nil, errorf(CodeFailed, name, x.source, "%s returned nothing", name)
	}
	return result, err
}

func (x *prompt) checkArguments(given map[string]string) error {
	var missing, unknown []string
	for _, a := range x.arguments {
		if _, ok := given[a.Name]; a.Required && !ok {
			missing = append(missing, a.Name)
		}
	}
	for name := range given {
		if !slices.ContainsFunc(x.arguments, func(a *mcp.PromptArgument) bool { return a.Name == name }) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	switch {
	case len(missing) > 0:
		return errorf(CodeArguments, x.key, x.id, "prompt %s needs the arguments: %s", x.key, strings.Join(missing, ", "))
	case len(unknown) > 0:
		return errorf(CodeArguments, x.key, x.id, "prompt %s has no arguments: %s", x.key, strings.Join(unknown, ", "))
	}
	return nil
}
