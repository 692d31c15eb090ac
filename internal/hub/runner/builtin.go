package runner

// Builtin returns the agents that every hub has, by id. They are not completed: the
// remaining fields depend on the driver, which the user may change.
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
	return map[string]Definition{
		"claude-code": claudeCode(),
		"gemini":      gemini(),
		"codex":       codex(),
		"vibe":        vibe(),
		"echo": {
			ID: "echo", Name: "Echo", Driver: DriverEcho,
			Description: "Answers with the message itself. Always there, to try the hub and to measure it.",
			Skills:      []Skill{{ID: "echo", Name: "Echo", Description: "Sends the text back", Tags: []string{"test"}}},
		},
	}
}

// codingSkills are the skills of every coding agent.
func codingSkills() []Skill {
	return []Skill{
		{ID: "write-code", Name: "Write code", Description: "Writes and changes code in its working directory", Tags: []string{"code", "edit", "refactoring"}},
		{ID: "explain-code", Name: "Explain code", Description: "Reads code and answers questions about it", Tags: []string{"code", "analysis", "review"}},
		{ID: "debug", Name: "Debug", Description: "Finds the cause of a failure and corrects it", Tags: []string{"code", "debugging", "tests"}},
	}
}

func claudeCode() Definition {
	return Definition{
		ID: "claude-code", Name: "Claude Code CLI", Driver: DriverClaudeStdio, Command: "claude",
		Description: "Anthropic's coding agent",
		ModelArgs:   []string{"--model", modelPlace},
		Env: EnvSpec{
			// Without CLAUDECODE and the like: claude refuses to run within claude.
			Allow: []string{
				"ANTHROPIC_*", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_*", "CLAUDE_CODE_SKIP_*",
				"CLAUDE_CODE_MAX_*", "CLAUDE_CODE_API_KEY_HELPER_TTL_MS", "CLAUDE_CODE_DISABLE_*",
				"DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "CLOUD_ML_REGION",
			},
			Set: map[string]string{
				// By default claude retries ten times, for minutes, before it reports that its
				// model is unreachable.
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
	}
}

func gemini() Definition {
	return Definition{
		ID: "gemini", Name: "Gemini CLI", Driver: DriverExec, Command: "gemini",
		Description: "Google's coding agent",
		ModelArgs:   []string{"--model=" + modelPlace},
		Env: EnvSpec{
			Allow: []string{
				"GEMINI_*", "GOOGLE_API_KEY", "GOOGLE_GENAI_*", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL",
				"GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_PROJECT_ID", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS",
				"CODE_ASSIST_ENDPOINT", "NODE_COMPILE_CACHE",
			},
			Set: map[string]string{
				// Without it gemini exits with 55 in a directory that the user has not marked as
				// trusted. The hub restricts working directories itself.
				"GEMINI_CLI_TRUST_WORKSPACE": "true",
				// One process instead of two, and 0.4 s faster.
				"GEMINI_CLI_NO_RELAUNCH": "true",
			},
		},
		Probe: ProbeSpec{
			AuthEnv: []string{
				"GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_APPLICATION_CREDENTIALS",
			},
			AuthFiles: []string{"~/.gemini/oauth_creds.json", "~/.gemini/gemini-credentials.json"},
			Install:   "install it with: npm install -g @google/gemini-cli",
			Login:     "run gemini once and choose how to log in, or set GEMINI_API_KEY",
		},
		Skills: codingSkills(),
	}
}

func codex() Definition {
	return Definition{
		ID: "codex", Name: "OpenAI Codex CLI", Driver: DriverCodexAppServer, Command: "codex",
		Description: "OpenAI's coding agent",
		ModelArgs:   []string{"-m", modelPlace},
		Env: EnvSpec{
			Allow: []string{"OPENAI_*", "CODEX_HOME", "CODEX_API_KEY", "CODEX_ACCESS_TOKEN", "AZURE_OPENAI_*"},
		},
		Probe: ProbeSpec{
			Auth:    []string{"login", "status"},
			AuthEnv: []string{"CODEX_API_KEY", "CODEX_ACCESS_TOKEN"},
			Install: "install it with: npm install -g @openai/codex",
			Login:   "log in with: codex login (with an API key: printenv OPENAI_API_KEY | codex login --with-api-key)",
		},
		Skills: codingSkills(),
	}
}

func vibe() Definition {
	return Definition{
		ID: "vibe", Name: "Mistral Vibe CLI", Driver: DriverACP, Command: "vibe-acp",
		Description: "Mistral's coding agent",
		Env:         EnvSpec{Allow: []string{"MISTRAL_*", "VIBE_*"}},
		Probe: ProbeSpec{
			AuthEnv:   []string{"MISTRAL_API_KEY"},
			AuthFiles: []string{"~/.vibe/.env"},
			Install:   "install it with: uv tool install mistral-vibe (or pipx install mistral-vibe)",
			Login:     "run vibe --setup, or set MISTRAL_API_KEY",
		},
		Skills: codingSkills(),
	}
}

// preset returns the arguments of a built-in agent for one of its drivers. The drivers
// claude-stdio and codex-appserver add their arguments themselves.
func preset(id, driver string) Definition {
	switch id + "/" + driver {
	case "claude-code/exec":
		return Definition{
			Args:   []string{"-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages"},
			Parser: ParserClaudeStream,
			Session: SessionFlags{
				New:    []string{"--session-id", sessionPlace},
				Resume: []string{"--resume", sessionPlace},
			},
			// claude refuses bypassPermissions to root, also in containers.
			PermissionArgs: map[string][]string{PermissionsAllow: {
				"--allowedTools=Bash,Edit,NotebookEdit,WebFetch,WebSearch,Write,mcp__*",
			}},
		}
	case "gemini/exec":
		return Definition{
			Args:   []string{"-o", "stream-json"},
			Parser: ParserGeminiStream,
			Session: SessionFlags{
				New:    []string{"--session-id=" + sessionPlace},
				Resume: []string{"--resume=" + sessionPlace},
			},
			PermissionArgs: map[string][]string{PermissionsAllow: {"--approval-mode=yolo"}},
		}
	case "gemini/acp":
		return Definition{Args: []string{"--acp"}}
	case "codex/exec":
		// Sessions may be resumed from any directory. "resume" does not accept -s, but
		// accepts the configuration key.
		return Definition{
			Args:   []string{"exec", "--json", "--skip-git-repo-check", "-c", `sandbox_mode="workspace-write"`},
			Parser: ParserCodexJSONL,
			Session: SessionFlags{
				Resume: []string{
					"exec", "resume", "--json", "--skip-git-repo-check", "-c", `sandbox_mode="workspace-write"`, sessionPlace, "-",
				},
				ResumeReplaces: true,
			},
			PermissionArgs: map[string][]string{PermissionsDeny: {"-c", `sandbox_mode="read-only"`}},
		}
	case "vibe/exec": // with command: vibe
		return Definition{
			// With a -p without a value vibe reads the prompt from standard input.
			Args:    []string{"-p", "--output", "streaming"},
			Parser:  ParserVibeStream,
			Session: SessionFlags{Resume: []string{"--resume=" + sessionPlace}},
			// Headless vibe approves everything unless another mode is chosen.
			PermissionArgs: map[string][]string{
				PermissionsAsk:   {"--agent", "default"},
				PermissionsAllow: {"--agent", "auto-approve"},
				PermissionsDeny:  {"--agent", "plan"},
			},
		}
	}
	return Definition{}
}
