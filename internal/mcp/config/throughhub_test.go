package config_test

import (
	"strings"
	"testing"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// Through the hub's link neither URLs nor a login are needed, but the acknowledgment is
// (REQ-CONFIG-CROSS-003); what says otherwise is refused.
func TestTheClusterThroughTheHub(t *testing.T) {
	load := func(env map[string]string) (*mcpconfig.Config, error) {
		env["CROSS_COMPUTER_ENABLED"], env["NATS_MCP_THROUGH_HUB"] = "true", "true"
		return mcpconfig.Load(mcpconfig.Sources{WorkDir: t.TempDir(), HomeDir: t.TempDir(),
			LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok }})
	}
	c, err := load(map[string]string{"NATS_MCP_ACKNOWLEDGMENT": mcpconfig.Acknowledgment})
	if err != nil || !c.CrossComputer.ThroughHub || !c.Networked() {
		t.Fatalf("%+v, %v", c, err)
	}
	for want, env := range map[string]map[string]string{
		"crossComputer.acknowledgment": {},
		"crossComputer.throughHub":     {"NATS_MCP_ACKNOWLEDGMENT": mcpconfig.Acknowledgment, "NATS_CLUSTER_URLS": "tls://nats.example.com:4222"},
		"crossComputer.agentGuid":      {"NATS_MCP_ACKNOWLEDGMENT": mcpconfig.Acknowledgment, "NATS_MCP_AGENT_GUID": "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"},
	} {
		if _, err := load(env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
}
