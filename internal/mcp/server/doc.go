// Package server is the MCP server: the tools, resources and prompts through
// which coding agents use Parley.
//
// A [Service] is what the servers of one project share: the groups of tools and
// the sessions of clients that keep none themselves. It makes a [Server] for each
// connection. What the tools do is the groups' business: a [Group] registers its
// tools on a server, and asks the [Call] who calls. [Channels] is the group of the
// project's channels; other groups live in packages of their own.
//
// On standard input and output [Service.ServeLines] speaks both eras of the
// protocol (2024-11-05 to 2025-11-25, and 2026-07-28). [Handler] serves them over
// streamable HTTP, for many projects at one path.
package server
