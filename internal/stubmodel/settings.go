package stubmodel

import (
	"os"
	"path/filepath"
)

// Settings returns the environment in which a vendor's CLI, named as Parley's agent of it or as its adapter for ACP, asks the
// model at a URL, and writes the CLI's settings for that into a home directory of its own.
func Settings(agent, url, home string) (map[string]string, error) {
	env := map[string]string{"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config")}
	switch agent {
	case "claude-code", "claude-agent-acp":
		env["ANTHROPIC_BASE_URL"], env["ANTHROPIC_API_KEY"] = url, "sk-ant-stub"
	case "gemini":
		env["GOOGLE_GEMINI_BASE_URL"], env["GEMINI_API_KEY"] = url, "stub"
		return env, write(filepath.Join(home, ".gemini", "settings.json"), `{"security":{"auth":{"selectedType":"gemini-api-key"}}}`)
	case "codex", "codex-acp":
		env["STUB_KEY"] = "stub"
		return env, write(filepath.Join(home, ".codex", "config.toml"), `model = "stub-model"
model_provider = "stub"
[model_providers.stub]
name = "stub"
base_url = "`+url+`/v1"
env_key = "STUB_KEY"
wire_api = "responses"
`)
	}
	return env, nil
}

// GeminiModel is the model of gemini for tests: the default asks a router model first.
const GeminiModel = "gemini-2.5-flash"

func write(file, content string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(content), 0o600)
}
