package runner

import (
	_ "embed"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed builtin.yaml
var builtinYAML []byte

// builtinAgent is an entry of builtin.yaml.
type builtinAgent struct {
	Definition `yaml:",inline"`
	Presets    map[string]Definition `yaml:"presets"` // by driver
}

// builtins decodes builtin.yaml once.
var builtins = sync.OnceValue(func() map[string]builtinAgent {
	var agents map[string]builtinAgent
	if err := yaml.UnmarshalWithOptions(builtinYAML, &agents, yaml.Strict()); err != nil {
		panic(err) // the file is part of the program
	}
	return agents
})

// Builtin returns the agents that every hub has, by id. They are not completed: the remaining fields depend on the
// driver, which the user may change. The definitions share their lists and maps: do not modify them.
//
// The reasons for their drivers:
//
//   - claude-code uses claude-stdio: it asks for permissions, streams, and can be
//     interrupted without losing the session. exec denies silently.
//   - codex uses codex-appserver: exec never asks for approvals and does not stream.
//   - gemini uses exec: its ACP mode cannot load a conversation of an earlier process
//     (measured with 0.61.0) and would lose it at every restart of the hub and after
//     limits.sessionIdle, while headless --resume works. exec cannot ask for
//     permissions, so that tools that need one are denied. With driver: acp it asks.
//   - vibe uses ACP through vibe-acp: its headless mode has no final event, and session
//     ids only in newer versions.
//   - echo answers with the message itself.
func Builtin() map[string]Definition {
	defs := make(map[string]Definition)
	for id, a := range builtins() {
		a.ID = id
		defs[id] = a.Definition
	}
	return defs
}

// preset returns the settings of a built-in agent for one of its drivers.
func preset(id, driver string) Definition { return builtins()[id].Presets[driver] }
