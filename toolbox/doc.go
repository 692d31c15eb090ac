// Package toolbox lets agents share tools, resources and prompts, in the terms of
// the Model Context Protocol.
//
// A [Box] holds what the agents of a process offer. Each agent has a [Provider],
// under whose name its tools stand, "venus.lint" say:
//
//	box := toolbox.New(toolbox.Options{})
//	venus, err := box.Provider("venus")
//	err = venus.AddTool(tool, handler)
//
//	result, err := box.Call(ctx, "mars", "venus.lint", arguments, nil)
//
// [Box.Serve] gives an MCP server what one agent may see of the box, and keeps it
// so: a session sees tools come and go. [Box.Mount] takes in the tools of another
// MCP server, a program on this machine, one elsewhere, or an agent at the other
// end of a channel (see [Over]), and keeps the connection.
//
// Who may see and call what is up to [Options.Policy]: with a router as policy
// agents see the tools of the agents that they may address. What an agent may not
// see looks as if it were not there.
//
// Arguments and results are checked against the schemas of the tool. A failed call
// gives an [Error] with a code, a message and the agent whose tool it is; each call
// is counted and recorded.
package toolbox
