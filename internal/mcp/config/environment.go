package config

import (
	"strings"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Variable is an environment variable that sets one value.
type Variable struct {
	Name string
	Path string // in the document
}

// parentsPath is the setting that is required to find the project's file.
const parentsPath = "searchParents"

// Variables returns the environment variables in the order of increasing precedence: those that the specification names,
// then NATS_MCP_<SETTING> for every setting.
func Variables() []Variable {
	return []Variable{
		{"NATS_URL", "natsUrl"},
		{"NATS_USERNAME", "natsCredentials.username"},
		{"NATS_PASSWORD", "natsCredentials.password"},
		{"NATS_TLS_CERT", "natsTls.cert"},
		{"NATS_TLS_KEY", "natsTls.key"},
		{"NATS_TLS_CA", "natsTls.ca"},
		{"CROSS_COMPUTER_ENABLED", "crossComputer.enabled"},
		{"NATS_CLUSTER_URLS", "crossComputer.natsClusterUrls"},
		{"REGISTRY_BUCKET", "crossComputer.registryBucket"},
		{"HEARTBEAT_INTERVAL", "crossComputer.heartbeatInterval"},
		{"TIMEOUT_THRESHOLD", "crossComputer.timeoutThreshold"},
		{"DEFAULT_VISIBILITY", "crossComputer.defaultVisibility"},
		{"TLS_REQUIRED", "crossComputer.tlsRequired"},
		{"AUTO_REGISTER", "crossComputer.autoRegister"},
		{"DEFAULT_AGENT_TYPE", "crossComputer.defaultAgentType"},
		{"WORKQUEUE_ACK_TIMEOUT", "workQueue.ackTimeout"},
		{"WORKQUEUE_MAX_ATTEMPTS", "workQueue.maxDeliveryAttempts"},
		{"WORKQUEUE_DLQ_TTL", "workQueue.deadLetterTTL"},
		{"LOG_LEVEL", "logging.level"},
		{"LOG_FORMAT", "logging.format"},
		{"NATS_MCP_NAMESPACE", "namespace"},
		{"NATS_MCP_URL", "natsUrl"},
		{"NATS_MCP_USERNAME", "natsCredentials.username"},
		{"NATS_MCP_PASSWORD", "natsCredentials.password"},
		{"NATS_MCP_TLS_CERT", "natsTls.cert"},
		{"NATS_MCP_TLS_KEY", "natsTls.key"},
		{"NATS_MCP_TLS_CA", "natsTls.ca"},
		{"NATS_MCP_LOG_LEVEL", "logging.level"},
		{"NATS_MCP_LOG_FORMAT", "logging.format"},
		{"NATS_MCP_AUTOSTART", "autostart"},
		{"NATS_MCP_LOCAL_NETWORK", "crossComputer.local"},
		{"NATS_MCP_THROUGH_HUB", "crossComputer.throughHub"},
		{"NATS_MCP_ACKNOWLEDGMENT", "crossComputer.acknowledgment"},
		{"NATS_MCP_REGISTRY_TTL", "crossComputer.registryTTL"},
		{"NATS_MCP_DEFAULT_CAPABILITIES", "crossComputer.defaultCapabilities"},
		{"NATS_MCP_INBOXES", "crossComputer.inboxes"},
		{"NATS_MCP_REPLICAS", "crossComputer.replicas"},
		{"NATS_MCP_AGENT_GUID", "crossComputer.agentGuid"},
		{"NATS_MCP_NKEY_FILE", "crossComputer.nkeyFile"},
		{"NATS_MCP_CREDS_FILE", "crossComputer.credsFile"},
		{"NATS_MCP_TOKEN", "crossComputer.token"},
		{"NATS_MCP_INSECURE_SKIP_VERIFY", "crossComputer.insecureSkipVerify"},
		{"NATS_MCP_SEARCH_PARENTS", parentsPath},
	}
}

// readEnvironment applies the environment variables: those of one path, or if it is empty all but those of parentsPath.
// An empty variable counts as not set.
func (l *loader) readEnvironment(only string) {
	for _, v := range Variables() {
		text, ok := l.src.LookupEnv(v.Name)
		if !ok || text == "" || (only != "" && v.Path != only) || (only == "" && v.Path == parentsPath) {
			continue
		}
		if v.Path == "logging.level" {
			text = strings.ToUpper(text)
		}
		for _, p := range rawjson.DecodeText(v.Path, text, &l.config.Document) {
			l.problem(v.Name, p.Path, p.Message)
		}
		l.config.Origins[v.Path] = Origin{Layer: LayerEnvironment, Name: v.Name}
	}
}
