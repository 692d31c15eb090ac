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

// CommandOf returns how a person calls the program that was called as path: by its name, but from where go run keeps it no shell finds it.
func CommandOf(path string) string {
	name := ProgramOf(path)
	if file := filepath.Base(path); inBuildDir(path) && strings.TrimSuffix(file, ".exe") == name {
		return "go run ./cmd/" + name
	}
	return name
}

// inBuildDir reports whether a path is below a directory of the compiler: go-build, or go-build with a number.
func inBuildDir(path string) bool {
	for _, dir := range strings.Split(filepath.ToSlash(path), "/") {
		if number, ok := strings.CutPrefix(dir, "go-build"); ok && strings.Trim(number, "0123456789") == "" {
			return true
		}
	}
	return false
}
