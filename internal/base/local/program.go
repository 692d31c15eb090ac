package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Program names. The programs are one, and differ only in what they do without a command.
const (
	ProgramParley    = "parley"
	ProgramHub       = "a2a-hub"
	ProgramMCPServer = "nats-mcp-server"
)

// Program returns the name under which this program was called, for messages that recommend a command to people: one of
// the constants above, and ProgramParley for any other file name.
func Program() string { return ProgramOf(os.Args[0]) }

// ProgramOf returns the name of the program in a file.
func ProgramOf(path string) string {
	name := strings.TrimSuffix(strings.ToLower(filepath.Base(path)), ".exe")
	if slices.Contains([]string{ProgramHub, ProgramMCPServer}, name) {
		return name
	}
	return ProgramParley
}
