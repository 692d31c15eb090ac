package config_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

const network = `{"crossComputer": {"enabled": true, "acknowledgment": "I understand the security implications",
	"natsClusterUrls": ["nats://nats.example.com:4222"]}}`

// REQ-CONFIG-CROSS-001, REQ-CONFIG-CROSS-002, REQ-HEARTBEAT-003, REQ-HEARTBEAT-004, REQ-WORKQUEUE-CONFIG-001
func TestTheNetworkIsOffByDefault(t *testing.T) {
	c := newMachine(t).mustLoad(t)
	want := mcpconfig.CrossComputer{RegistryBucket: "agent-registry", HeartbeatInterval: 60, TimeoutThreshold: 180, RegistryTTL: 86400,
		DefaultVisibility: "project-only", TLSRequired: true, RegisterSessions: true, DefaultAgentType: "general", Inboxes: "per-agent"}
	if diff := cmp.Diff(want, c.CrossComputer); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(mcpconfig.WorkQueue{AckTimeout: 300, MaxDeliveryAttempts: 3, DeadLetterTTL: 604800}, c.WorkQueue); diff != "" {
		t.Error(diff)
	}
	if c.Networked() {
		t.Error("the network is enabled")
	}
}

// REQ-ENV-CROSS-001, REQ-ENV-CROSS-002
func TestEveryVariableOfTheNetworkSetsItsValue(t *testing.T) {
	values := map[string]struct{ text, want string }{
		"crossComputer.enabled":             {"true", "true"},
		"crossComputer.local":               {"false", "false"},
		"crossComputer.acknowledgment":      {mcpconfig.Acknowledgment, `"` + mcpconfig.Acknowledgment + `"`},
		"crossComputer.natsClusterUrls":     {"nats://a:1,tls://b:2", `["nats://a:1","tls://b:2"]`},
		"crossComputer.registryBucket":      {"agents", `"agents"`},
		"crossComputer.heartbeatInterval":   {"30", "30"},
		"crossComputer.timeoutThreshold":    {"90", "90"},
		"crossComputer.registryTTL":         {"3600", "3600"},
		"crossComputer.defaultVisibility":   {"public", `"public"`},
		"crossComputer.tlsRequired":         {"false", "false"},
		"crossComputer.autoRegister":        {"1", "true"},
		"crossComputer.defaultAgentType":    {"reviewer", `"reviewer"`},
		"crossComputer.defaultCapabilities": {"a, b", `["a","b"]`},
		"crossComputer.inboxes":             {"shared", `"shared"`},
		"crossComputer.replicas":            {"3", "3"},
		"crossComputer.agentGuid":           {"7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", `"7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"`},
		"crossComputer.nkeyFile":            {"k", `"k"`},
		"crossComputer.credsFile":           {"c", `"c"`},
		"crossComputer.token":               {"secret", `"(hidden)"`},
		"crossComputer.insecureSkipVerify":  {"true", "true"},
		"workQueue.ackTimeout":              {"10", "10"},
		"workQueue.maxDeliveryAttempts":     {"5", "5"},
		"workQueue.deadLetterTTL":           {"60", "60"},
	}
	covered := map[string]bool{}
	for _, v := range mcpconfig.Variables() {
		value, ok := values[v.Path]
		if !ok {
			continue
		}
		covered[v.Path] = true
		m := newMachine(t)
		m.writeProject(t, network)
		m.env[v.Name] = value.text
		got := "nothing"
		for _, x := range m.mustLoad(t).Values() {
			if data, err := json.Marshal(x.Value); err == nil && x.Key == v.Path {
				got = string(data)
				if x.Origin.Name != v.Name {
					t.Errorf("%s comes from %v", v.Path, x.Origin)
				}
			}
		}
		if got != value.want {
			t.Errorf("%s is %s", v.Name, got)
		}
	}
	if len(covered) != len(values) {
		t.Errorf("variables for %d of %d settings", len(covered), len(values))
	}
}

// REQ-CONFIG-CROSS-003, REQ-CONFIG-CROSS-004, REQ-CONFIG-CROSS-005
func TestInvalidNetworkSettingsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no acknowledgment": {`{"crossComputer": {"enabled": true, "natsClusterUrls": ["nats://x"]}}`,
			`crossComputer.acknowledgment: agents of other computers will be able to write to this one; to enable that, set it to exactly "I understand the security implications"`},
		"almost": {`{"crossComputer": {"enabled": true, "acknowledgment": "i understand the security implications", "natsClusterUrls": ["nats://x"]}}`,
			"crossComputer.acknowledgment"},
		"no servers": {`{"crossComputer": {"enabled": true, "acknowledgment": "I understand the security implications"}}`,
			"crossComputer.natsClusterUrls: required when crossComputer is enabled"},
		"no server": {`{"crossComputer": {"enabled": true, "acknowledgment": "I understand the security implications", "natsClusterUrls": []}}`,
			"crossComputer.natsClusterUrls: required"},
		"no host":      {strings.Replace(network, "nats.example.com:4222", ":4222", 1), "is not a URL such as"},
		"no TLS":       {strings.Replace(network, "nats://", "ws://", 1), "ws:// has no TLS, which tlsRequired demands"},
		"not NATS":     {strings.Replace(network, "nats://", "http://", 1), "crossComputer.natsClusterUrls[0]: \"http://nats.example.com:4222\" does not match"},
		"two ways":     {strings.Replace(network, `{"crossComputer": {`, `{"natsCredentials": {"username": "u"}, "crossComputer": {"nkeyFile": "k", `, 1), "more than one way to log in"},
		"both kinds":   {strings.Replace(network, `"enabled": true`, `"enabled": true, "local": true`, 1), "set one of them"},
		"quick beat":   {`{"crossComputer": {"heartbeatInterval": 9}}`, "crossComputer.heartbeatInterval: 9 is too small; the least is 10"},
		"visibility":   {`{"crossComputer": {"defaultVisibility": "all"}}`, "allowed: private, project-only, user-only, public"},
		"type":         {`{"crossComputer": {"defaultAgentType": "Big Boss"}}`, "does not match"},
		"guid":         {`{"crossComputer": {"agentGuid": "me"}}`, "does not match"},
		"unknown":      {`{"crossComputer": {"enable": true}}`, `did you mean "enabled"`},
		"no attempts":  {`{"workQueue": {"maxDeliveryAttempts": 0}}`, "the least is 1"},
		"short bucket": {`{"crossComputer": {"registryBucket": "a.b"}}`, "does not match"},
	} {
		m := newMachine(t)
		path := m.writeProject(t, tt.text)
		_, err := m.load()
		if err == nil || !strings.Contains(err.Error(), tt.want) || !regexp.MustCompile(regexp.QuoteMeta(path)+`:\d+:\d+: `).MatchString(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := newMachine(t)
	m.env["CROSS_COMPUTER_ENABLED"] = "true"
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "CROSS_COMPUTER_ENABLED: crossComputer.acknowledgment") {
		t.Error(err)
	}
}

// REQ-CONFIG-CROSS-001: section 18.11's examples.
func TestTheNetworksConfiguration(t *testing.T) {
	m := newMachine(t)
	m.writeProject(t, `{
  "namespace": "my-project",
  "channels": [
    {"name": "planning", "description": "Sprint planning"},
    {"name": "implementation", "description": "Development coordination"},
    {"name": "review", "description": "Code review discussions"}
  ],
  "crossComputer": {
    "enabled": true,
    "acknowledgment": "I understand the security implications",
    "natsClusterUrls": ["nats://nats.example.com:4222"],
    "tlsRequired": true,
    "defaultVisibility": "project-only",
    "autoRegister": true,
    "defaultAgentType": "developer",
    "defaultCapabilities": ["typescript", "testing", "code-review"]
  }
}`)
	m.env["NATS_CLUSTER_URLS"] = "nats://nats.example.com:4222,nats://nats2.example.com:4222"
	m.env["NATS_URL"], m.env["NATS_TLS_CA"] = "nats://localhost:4222", "/path/to/ca.crt"
	c := m.mustLoad(t)
	if got := string(c.CrossComputer.ClusterURL()); got != m.env["NATS_CLUSTER_URLS"] || !c.Networked() {
		t.Error(got)
	}
	if !c.NATSURL.OnThisComputer() || c.CrossComputer.ClusterURL().OnThisComputer() {
		t.Error("OnThisComputer is wrong for one of the servers")
	}
	m.env["NATS_CLUSTER_URLS"] = "nats://user:hunter2@nats.example.com:4222"
	if shown := fmt.Sprintf("%v %+v", m.mustLoad(t).Values(), m.mustLoad(t).CrossComputer); strings.Contains(shown, "hunter2") {
		t.Error("a password is visible:", shown)
	}
}

func TestTheLocalNetworkNeedsNoAcknowledgment(t *testing.T) {
	m := newMachine(t)
	m.writeProject(t, `{"crossComputer": {"local": true}}`)
	if c := m.mustLoad(t); !c.Networked() {
		t.Error("the network is disabled")
	}
}

// REQ-DIRECT-002
func TestAProjectCannotHaveTheNetworksPrefix(t *testing.T) {
	m := newMachine(t)
	m.env["NATS_MCP_NAMESPACE"] = "global"
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), `NATS_MCP_NAMESPACE: namespace: "global" is reserved`) {
		t.Error(err)
	}
}

// Through the hub's link, URLs and a login are not needed and are refused; the
// acknowledgment is needed (REQ-CONFIG-CROSS-003).
func TestClusterSettingsThroughTheHub(t *testing.T) {
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
