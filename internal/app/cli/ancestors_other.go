//go:build !linux

package cli

// ancestorsEnv finds nothing here: systems other than Linux do not show the
// environment of other processes to all. An agent that keeps its environment from
// its MCP servers must be told to pass the variable; see docs/tools.md.
func ancestorsEnv(string) string { return "" }
