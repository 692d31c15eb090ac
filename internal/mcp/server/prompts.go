package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/chat"
)

// workflow is a prompt for one of the roles that the specification describes.
type workflow struct {
	name, title, description string
	handle                   string // the default
	arguments                []*mcp.PromptArgument
	text                     func(a arguments) string
}

// arguments are a prompt's arguments, including defaults.
type arguments map[string]string

var (
	handleArgument  = &mcp.PromptArgument{Name: "handle", Title: "Handle", Description: "The agent's name in the channels"}
	channelArgument = &mcp.PromptArgument{Name: "channel", Title: "Channel", Description: "The channel in which the work is coordinated"}
)

var workflows = []workflow{
	{
		name: "dispatcher", title: "Dispatch the work", handle: "dispatcher",
		description: "Find what can be worked on, and hand it out to other agents",
		arguments: []*mcp.PromptArgument{handleArgument, channelArgument,
			{Name: "roadmap", Title: "Roadmap", Description: "The file that lists the planned work, for example ROADMAP.md"}},
		text: func(a arguments) string {
			return steps(
				fmt.Sprintf("Call set_handle with the handle %q.", a["handle"]),
				fmt.Sprintf("Announce with send_message in the channel %q: Dispatcher analyzing roadmap for available work...", a["channel"]),
				"Read "+a["roadmap"]+" and find the tasks that nobody has begun and whose prerequisites are done.",
				fmt.Sprintf("Call read_messages for %q and leave out every task that somebody has claimed (\"Claimed ID\") and not given back.", a["channel"]),
				fmt.Sprintf("For each task that is left, send to %q: Dispatching AGENT for ID, with what the agent needs to know. Start the agent if you can.", a["channel"]),
				fmt.Sprintf("When all are handed out, send to %q: Dispatched N agents.", a["channel"]),
				"Call wait_for_messages. When a worker reports \"Completed ID\", look for tasks that can begin now and go on with step 4; "+
					"when one reports an error, decide who takes the task over.",
			)
		},
	},
	{
		name: "worker", title: "Work on a task", handle: "worker",
		description: "Claim the task that was dispatched to you, do it, and report",
		arguments: []*mcp.PromptArgument{handleArgument, channelArgument,
			{Name: "task", Title: "Task", Description: "The id of your task, if you know it already"}},
		text: func(a arguments) string {
			find := fmt.Sprintf("Call read_messages for %q with the limit 50 and find the task that was dispatched to you (\"Dispatching %s for ID\").", a["channel"], a["handle"])
			if a["task"] != "" {
				find = fmt.Sprintf("Call read_messages for %q with the limit 50 and read what was said about your task %s.", a["channel"], a["task"])
			}
			return steps(
				fmt.Sprintf("Call set_handle with the handle %q.", a["handle"]),
				find,
				"If another agent has claimed the task already, say so in the channel and stop. If there is none for you, call wait_for_messages.",
				fmt.Sprintf("Claim it with send_message in %q: Claimed ID - Starting implementation.", a["channel"]),
				fmt.Sprintf("Do the work, tests first. Report the progress of long work in %q.", a["channel"]),
				fmt.Sprintf("If something stops you, send the details to %q.", a["errors"]),
				fmt.Sprintf("When it is done, send to %q: Completed ID - All tests passing, with what others must know.", a["channel"]),
			)
		},
	},
	{
		name: "reporter", title: "Report the status", handle: "reporter",
		description: "Summarise what was planned, what is done and what went wrong",
		arguments: []*mcp.PromptArgument{handleArgument, channelArgument,
			{Name: "roadmap", Title: "Roadmap", Description: "The file that lists the planned work, for example ROADMAP.md"}},
		text: func(a arguments) string {
			return steps(
				fmt.Sprintf("Call set_handle with the handle %q.", a["handle"]),
				fmt.Sprintf("Call read_messages for %q (limit 100), %q (limit 100) and %q (limit 50).", a["plan"], a["channel"], a["errors"]),
				"Read "+a["roadmap"]+" and the development log, if there is one.",
				"Work out: how much is completed, what is in progress and by whom, errors and blockers, what can be worked on next. "+
					"If a channel is empty, say so: \"No agent activity recorded\", \"No errors logged\".",
				fmt.Sprintf("Send to %q: Status report generated. Summary: ... in two or three sentences.", a["plan"]),
				"Present the full report to the user.",
			)
		},
	},
}

func steps(all ...string) string {
	var b strings.Builder
	for i, step := range all {
		fmt.Fprintf(&b, "%d. %s\n", i+1, step)
	}
	return b.String()
}

func isPrompt(name string) bool {
	return slices.ContainsFunc(workflows, func(w workflow) bool { return w.name == name })
}

func (g *Channels) addPrompts(s *Server) {
	for _, w := range workflows {
		s.mcp.AddPrompt(&mcp.Prompt{Name: w.name, Title: w.title, Description: w.description, Arguments: w.arguments},
			func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				a, err := g.promptArguments(w, req.Params.Arguments)
				if err != nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
				}
				text := fmt.Sprintf("You are the %s of this project. You talk to the other agents through the tools of this MCP server.\n\n%s\nThe project's channels:\n%s\n",
					w.name, w.text(a), g.channelList())
				return &mcp.GetPromptResult{Description: w.description, Messages: []*mcp.PromptMessage{
					{Role: "user", Content: &mcp.TextContent{Text: text}},
				}}, nil
			})
	}
}

// placeholder is what OpenCode gives for each argument to get a prompt as a template.
var placeholder = text.Pattern(`^\$\d{1,2}$`)

// maxArgument bounds a prompt's argument, in bytes.
const maxArgument = 4096

// promptArguments checks the given arguments and adds the defaults.
func (g *Channels) promptArguments(w workflow, given map[string]string) (arguments, error) {
	a := arguments{
		"handle": w.handle, "roadmap": "the roadmap (ROADMAP.md, docs/roadmap.md or the like)",
		"channel": g.channelLike("parallel-work"), "plan": g.channelLike("roadmap"), "errors": g.channelLike("errors"),
	}
	var names []string
	for _, known := range w.arguments {
		names = append(names, known.Name)
	}
	for name, value := range given {
		switch {
		case !slices.Contains(names, name):
			message := fmt.Sprintf("the prompt %s has no argument %.80q; it has %s", w.name, name, strings.Join(names, ", "))
			if near := text.Nearest(name, names); near != "" {
				message += fmt.Sprintf(" (did you mean %s?)", near)
			}
			return nil, fmt.Errorf("%s", message)
		case len(value) > maxArgument || strings.ContainsAny(value, "\r\n"):
			return nil, fmt.Errorf("the argument %s must be one line of at most %d bytes", name, maxArgument)
		case value != "":
			a[name] = value
		}
	}
	if err := chat.CheckHandle(a["handle"]); err != nil && !placeholder().MatchString(a["handle"]) {
		return nil, err
	}
	if !slices.Contains(g.names(), a["channel"]) && !placeholder().MatchString(a["channel"]) {
		return nil, fmt.Errorf("there is no channel %.80q; the project's channels are: %s", a["channel"], strings.Join(g.names(), ", "))
	}
	return a, nil
}

// channelLike returns name if the project has such a channel, else its first channel.
func (g *Channels) channelLike(name string) string {
	names := g.names()
	if len(names) == 0 || slices.Contains(names, name) {
		return name
	}
	return names[0]
}
