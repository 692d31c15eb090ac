//go:build !linux

package cli

// ancestorsEnv returns "": other systems than Linux do not show the environment of other processes. An agent that
// does not pass its environment to its MCP servers must be configured to pass the variable; see docs/tools.md.
func ancestorsEnv(string) string { return "" }
