package runner

import "sync"

// builtinAgent is an agent that every hub has.
type builtinAgent struct {
	Definition
	// Presets are the settings for one driver; claude-stdio and codex-appserver need none.
	Presets map[string]Definition
}

// builtins returns the built-in agents by id. They are Go, because every command needs them: YAML took 3 ms to decode. They
// are made at the first call, not when the program starts.
var builtins = sync.OnceValue(func() map[string]builtinAgent {
	return map[string]builtinAgent{
		"claude-code": claudeCode(),
		"gemini":      gemini(),
		"codex":       codex(),
		"vibe":        vibe(),
		"echo": {Definition: Definition{
			Name:        "Echo",
			Description: "Answers with the message itself. Always there, to try the hub and to measure it.",
			Driver:      "echo",
			Skills:      []Skill{{ID: "echo", Name: "Echo", Description: "Sends the text back", Tags: []string{"test"}}},
			Limits:      Limits{Concurrency: 64, Queue: 1000}, // it starts no process
		}},
	}
})

func codingSkills() []Skill {
	return []Skill{
		{
			ID: "write-code", Name: "Write code", Description: "Writes and changes code in its working directory",
			Tags: []string{"code", "edit", "refactoring"},
		},
		{
			ID: "explain-code", Name: "Explain code", Description: "Reads code and answers questions about it",
			Tags: []string{"code", "analysis", "review"},
		},
		{
			ID: "debug", Name: "Debug", Description: "Finds the cause of a failure and corrects it",
			Tags: []string{"code", "debugging", "tests"},
		},
	}
}

func claudeCode() builtinAgent {
	return builtinAgent{
		Definition: Definition{
			Name:        "Claude Code CLI",
			Description: "Anthropic's coding agent",
			Driver:      "claude-stdio",
			Command:     "claude",
			ModelArgs:   []string{"--model", "{model}"},
			Env: EnvSpec{
				// Without CLAUDECODE and the like: claude refuses to run within claude.
				Allow: []string{
					"ANTHROPIC_*",
					"CLAUDE_CONFIG_DIR",
					"CLAUDE_CODE_OAUTH_TOKEN",
					"CLAUDE_CODE_USE_*",
					"CLAUDE_CODE_SKIP_*",
					"CLAUDE_CODE_MAX_*",
					"CLAUDE_CODE_API_KEY_HELPER_TTL_MS",
					"CLAUDE_CODE_DISABLE_*",
					"DISABLE_TELEMETRY",
					"DISABLE_ERROR_REPORTING",
					"CLOUD_ML_REGION",
				},
				Set: map[string]string{
					// By default claude retries ten times, for minutes, before it reports that its model is unreachable.
					"CLAUDE_CODE_MAX_RETRIES": "3",
					"DISABLE_AUTOUPDATER":     "1",
				},
			},
			Probe: ProbeSpec{
				MinVersion: "2.0.0",
				Auth:       []string{"auth", "status"},
				AuthEnv:    []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"},
				Install:    "install it with: npm install -g @anthropic-ai/claude-code",
				Login:      "log in with: claude auth login, or set ANTHROPIC_API_KEY",
			},
			Skills: codingSkills(),
		},
		Presets: map[string]Definition{
			"exec": {
				Args:    []string{"-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"},
				Parser:  "claude-stream",
				Session: SessionFlags{New: []string{"--session-id", "{session}"}, Resume: []string{"--resume", "{session}"}},
				PermissionArgs: map[string][]string{
					// claude refuses bypassPermissions to root, also in containers.
					"allow": {"--allowedTools=Bash,Edit,NotebookEdit,WebFetch,WebSearch,Write,mcp__*"},
				},
			},
		},
	}
}

func gemini() builtinAgent {
	return builtinAgent{
		Definition: Definition{
			Name:        "Gemini CLI",
			Description: "Google's coding agent",
			Driver:      "acp",
			Command:     "gemini",
			Spare:       new(true),
			ModelArgs:   []string{"--model={model}"},
			Env: EnvSpec{
				Allow: []string{
					"GEMINI_*",
					"GOOGLE_API_KEY",
					"GOOGLE_GENAI_*",
					"GOOGLE_GEMINI_BASE_URL",
					"GOOGLE_VERTEX_BASE_URL",
					"GOOGLE_CLOUD_PROJECT",
					"GOOGLE_CLOUD_PROJECT_ID",
					"GOOGLE_CLOUD_LOCATION",
					"GOOGLE_APPLICATION_CREDENTIALS",
					"CODE_ASSIST_ENDPOINT",
					"NODE_COMPILE_CACHE",
				},
				Set: map[string]string{
					// Without it gemini exits with 55 in a directory that the user has not marked as trusted. The hub
					// restricts working directories itself.
					"GEMINI_CLI_TRUST_WORKSPACE": "true",
					// One process instead of two, and 0.4 s faster.
					"GEMINI_CLI_NO_RELAUNCH": "true",
				},
			},
			Probe: ProbeSpec{
				AuthEnv: []string{
					"GEMINI_API_KEY",
					"GOOGLE_API_KEY",
					"GOOGLE_GENAI_USE_VERTEXAI",
					"GOOGLE_GENAI_USE_GCA",
					"GOOGLE_APPLICATION_CREDENTIALS",
				},
				AuthFiles: []string{"~/.gemini/oauth_creds.json", "~/.gemini/gemini-credentials.json"},
				Install:   "install it with: npm install -g @google/gemini-cli",
				Login:     "run gemini once and choose how to log in, or set GEMINI_API_KEY",
			},
			Skills: codingSkills(),
		},
		Presets: map[string]Definition{
			"exec": {
				Args:           []string{"-o", "stream-json"},
				Parser:         "gemini-stream",
				Session:        SessionFlags{New: []string{"--session-id={session}"}, Resume: []string{"--resume={session}"}},
				PermissionArgs: map[string][]string{"allow": {"--approval-mode=yolo"}},
			},
			"acp": {
				Args: []string{"--acp"},
				// With ACP gemini reports repetitions of a request in its log only.
				Env: EnvSpec{Set: map[string]string{"GEMINI_DEBUG_LOG_FILE": "/dev/stderr"}},
			},
		},
	}
}

func codex() builtinAgent {
	return builtinAgent{
		Definition: Definition{
			Name:        "OpenAI Codex CLI",
			Description: "OpenAI's coding agent",
			Driver:      "codex-appserver",
			Command:     "codex",
			ModelArgs:   []string{"-m", "{model}"},
			Env: EnvSpec{
				Allow: []string{"OPENAI_*", "CODEX_HOME", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "AZURE_OPENAI_*"},
				Set: map[string]string{
					// codex reports its first repetitions of a request, which take 3 s, in its log only.
					"RUST_LOG": "error,codex_http_client::client=debug",
				},
			},
			Probe: ProbeSpec{
				Auth:    []string{"login", "status"},
				AuthEnv: []string{"CODEX_API_KEY", "CODEX_ACCESS_TOKEN"},
				Install: "install it with: npm install -g @openai/codex",
				Login:   "log in with: codex login (with an API key: printenv OPENAI_API_KEY | codex login --with-api-key)",
			},
			Skills: codingSkills(),
		},
		Presets: map[string]Definition{
			// Sessions may be resumed from any directory. "resume" does not accept -s, but accepts the configuration key.
			"exec": {
				Args:   []string{"exec", "--json", "--skip-git-repo-check", "-c", `sandbox_mode="workspace-write"`},
				Parser: "codex-jsonl",
				Session: SessionFlags{
					Resume: []string{
						"exec", "resume", "--json", "--skip-git-repo-check", "-c", `sandbox_mode="workspace-write"`, "{session}", "-",
					},
					ResumeReplaces: true,
				},
				PermissionArgs: map[string][]string{"deny": {"-c", `sandbox_mode="read-only"`}},
			},
		},
	}
}

func vibe() builtinAgent {
	return builtinAgent{
		Definition: Definition{
			Name:        "Mistral Vibe CLI",
			Description: "Mistral's coding agent",
			Driver:      "acp",
			Command:     "vibe-acp",
			Env:         EnvSpec{Allow: []string{"MISTRAL_*", "VIBE_*"}},
			Probe: ProbeSpec{
				AuthEnv:   []string{"MISTRAL_API_KEY"},
				AuthFiles: []string{"~/.vibe/.env"},
				Install:   "install it with: uv tool install mistral-vibe (or pipx install mistral-vibe)",
				Login:     "run vibe --setup, or set MISTRAL_API_KEY",
			},
			Skills: codingSkills(),
		},
		Presets: map[string]Definition{
			// With command: vibe. With a -p without a value vibe reads the prompt from standard input.
			"exec": {
				Args:    []string{"-p", "--output", "streaming"},
				Parser:  "vibe-stream",
				Session: SessionFlags{Resume: []string{"--resume={session}"}},
				PermissionArgs: map[string][]string{
					// Headless vibe approves everything unless another mode is chosen.
					"ask":   {"--agent", "default"},
					"allow": {"--agent", "auto-approve"},
					"deny":  {"--agent", "plan"},
				},
			},
		},
	}
}

// Builtin returns the agents that every hub has, by id. They are not completed: the remaining fields depend on the
// driver, which the user may change. The definitions share their lists and maps: do not modify them.
//
// The reasons for their drivers:
//
//   - claude-code uses claude-stdio: it asks for permissions, streams, and can be
//     interrupted without losing the session. exec denies silently.
//   - codex uses codex-appserver: exec never asks for approvals and does not stream.
//   - gemini uses ACP (since 0.33): it asks for permissions, and a second turn takes a fortieth
//     of the two seconds that each process of exec takes to start.
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
