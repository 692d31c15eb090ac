// Package mcp has only tests, behind the tag interop: what other people's MCP
// programs see of Parley.
package mcp
