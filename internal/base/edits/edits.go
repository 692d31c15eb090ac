// Package edits tells from the input of a coding agent's tool which files it changes. The input is the model's: paths are
// as it wrote them, and to be checked.
package edits

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// The limits of one input.
const (
	MaxFiles = 500
	maxPath  = 4096 // bytes
)

// tools are the tools that change files, of all programs.
var tools = map[string]bool{
	"Edit": true, "Write": true, "MultiEdit": true, "NotebookEdit": true, // Claude Code
	"write_file": true, "replace": true, // Gemini CLI; Vibe
	"apply_patch": true, "Bash": true, "shell": true, "command_execution": true, // Codex, whose commands may hold a patch
	"edit": true, "write": true, "multiedit": true, "patch": true, // OpenCode; the kind of an edit in the Agent Client Protocol
	"search_replace": true, // Vibe
}

// shells are the tools of which only patches are read.
var shells = map[string]bool{"Bash": true, "shell": true, "command_execution": true}

// patchLines begin the lines of a patch of Codex that name a file.
var patchLines = []string{"*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: "}

// input is what the tools of all programs are given.
type input struct {
	File     string `json:"file_path"`
	Camel    string `json:"filePath"`
	Path     string `json:"path"`
	Notebook string `json:"notebook_path"`
	Cwd      string `json:"cwd"`
	Command  text   `json:"command"`
	Patch    text   `json:"patch"`
	Text     text   `json:"patchText"`
}

// text is a string, or the joined strings of a list.
type text string

// UnmarshalJSON reads a text; what is none is empty.
func (t *text) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = text(one)
		return nil
	}
	var many []string
	_ = json.Unmarshal(data, &many) // another value names no file
	*t = text(strings.Join(many, "\n"))
	return nil
}

// change is an entry of Codex's list of changes.
type change struct {
	Path string `json:"path"`
	Kind struct {
		Move string `json:"move_path"`
	} `json:"kind"`
}

// Files returns the absolute paths of the files that a tool with this input changes, as far as the input names them. A relative path is
// below dir.
func Files(tool string, raw json.RawMessage, dir string) []string {
	if !tools[tool] || len(raw) == 0 {
		return nil
	}
	var in input
	if json.Unmarshal(raw, &in) != nil {
		return Absolute(listed(raw), dir)
	}
	if filepath.IsAbs(in.Cwd) && shells[tool] {
		dir = in.Cwd
	}
	return Absolute(in.named(tool, raw), dir)
}

// named returns the paths in an input as they are.
func (in input) named(tool string, raw json.RawMessage) []string {
	if shells[tool] {
		return patched(string(in.Command))
	}
	files := []string{in.File, in.Camel, in.Path, in.Notebook}
	for _, patch := range []text{in.Command, in.Patch, in.Text} {
		files = append(files, patched(string(patch))...)
	}
	if tool == "apply_patch" && strings.Join(files, "") == "" {
		return keyed(raw)
	}
	return files
}

// listed returns the paths of a list of changes.
func listed(raw json.RawMessage) (files []string) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	for _, x := range list[:min(len(list), MaxFiles)] {
		var c change
		if json.Unmarshal(x, &c) != nil { // a kind that is a word
			_ = json.Unmarshal(x, &struct {
				Path *string `json:"path"`
			}{&c.Path})
		}
		files = append(files, c.Path, c.Kind.Move)
	}
	return files
}

// keyed returns the names of an object: the files of a patch with their changes.
func keyed(raw json.RawMessage) []string {
	var changes map[string]struct {
		Update struct {
			Move string `json:"move_path"`
		} `json:"update"`
		Move string `json:"move_path"`
	}
	if json.Unmarshal(raw, &changes) != nil {
		return nil
	}
	var files []string
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		files = append(files, path, changes[path].Move, changes[path].Update.Move)
	}
	return files
}

// patched returns the files that a patch names, which may be in a command for a shell.
func patched(command string) (files []string) {
	if !strings.Contains(command, "*** ") {
		return nil
	}
	for line := range strings.Lines(command) {
		for _, begin := range patchLines {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), begin)
			if path = strings.TrimSpace(path); ok && len(files) < MaxFiles && !slices.Contains(files, path) {
				files = append(files, path)
			}
		}
	}
	return files
}

// Absolute returns paths below dir unless they are absolute, each once. What cannot be a path is left out.
func Absolute(paths []string, dir string) (files []string) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		if path = filepath.FromSlash(path); !filepath.IsAbs(path) {
			path = dir + string(filepath.Separator) + path // not cleaned: .. is that of the real directory
		}
		if len(path) <= maxPath && len(files) < MaxFiles && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files
}
