package install

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
)

// Obstacle is a setting that keeps what is entered from working.
type Obstacle struct{ Message, Remedy string }

// Overruled returns the settings of a program, its administrator or the project that keep Parley's hooks from running, as far as they
// are known. A file that cannot be read has none.
func (p Program) Overruled(at Place) []Obstacle {
	if p.overruled == nil {
		return nil
	}
	return p.overruled(at)
}

// ManagedClaude is the file in which administrators have Claude Code's settings.
func ManagedClaude() string {
	switch runtime.GOOS {
	case "darwin":
		return "/Library/Application Support/ClaudeCode/managed-settings.json"
	case "windows":
		return `C:\ProgramData\ClaudeCode\managed-settings.json`
	}
	return "/etc/claude-code/managed-settings.json"
}

func claudeOverruled(at Place) (all []Obstacle) {
	files := []string{filepath.Join(at.directory("CLAUDE_CONFIG_DIR", ".claude"), "settings.json"), ManagedClaude()}
	if dir, err := os.Getwd(); err == nil {
		files = append(files, filepath.Join(dir, ".claude", "settings.json"), filepath.Join(dir, ".claude", "settings.local.json"))
	}
	for _, path := range files {
		var s struct {
			Disabled bool `json:"disableAllHooks"`
			Managed  bool `json:"allowManagedHooksOnly"`
		}
		if !settings(path, &s) {
			continue
		}
		if s.Disabled {
			all = append(all, Obstacle{path + " switches all hooks off: sessions are neither told of news nor woken by a hook", "remove disableAllHooks there"})
		}
		if s.Managed && path == ManagedClaude() {
			all = append(all, Obstacle{path + " allows the administrator's hooks only", "ask your administrator to enter Parley's hooks there"})
		}
	}
	return all
}

// codexOverruled looks for the trust that Codex records of each hook after it has asked its user.
func codexOverruled(at Place) []Obstacle {
	dir := at.directory("CODEX_HOME", ".codex")
	doc, _, err := read(filepath.Join(dir, "config.toml"))
	if err != nil {
		return nil
	}
	hooks := filepath.Join(dir, "hooks.json")
	if real, err := filepath.EvalSymlinks(hooks); err == nil && bytes.Contains(doc, []byte(real+":")) {
		return nil
	}
	if bytes.Contains(doc, []byte(hooks+":")) {
		return nil
	}
	return []Obstacle{{"its user has not trusted the hooks yet: sessions are woken, but not told of news", "start codex, and answer its question about the hooks"}}
}

func geminiOverruled(at Place) []Obstacle {
	path := filepath.Join(at.directory("", ".gemini"), "settings.json")
	s := struct {
		Hooks struct {
			Enabled bool `json:"enabled"`
		} `json:"hooksConfig"`
	}{}
	s.Hooks.Enabled = true
	if settings(path, &s) && !s.Hooks.Enabled {
		return []Obstacle{{path + " switches all hooks off", "remove hooksConfig.enabled there"}}
	}
	return nil
}

// settings reads a file with settings. It reports false if there is none that can be read.
func settings(path string, into any) bool {
	doc, existed, err := read(path)
	return err == nil && existed && json.Unmarshal(plainJSON(doc), into) == nil
}
