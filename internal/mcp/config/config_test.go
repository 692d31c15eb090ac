package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	"github.com/parleyhub/parley/internal/third_party/jsonschema"
)

// machine has a home, a project and an environment for one test.
type machine struct {
	home, project string
	env           map[string]string
}

func newMachine(t *testing.T) *machine {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{filepath.Join(root, "home"), filepath.Join(root, "src", "app"), map[string]string{}}
	for _, dir := range []string{filepath.Join(m.home, ".nats-mcp"), m.project} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *machine) write(t *testing.T, path, text string) string {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (m *machine) writeUser(t *testing.T, text string) string {
	return m.write(t, filepath.Join(m.home, ".nats-mcp", "config.json"), text)
}

func (m *machine) writeProject(t *testing.T, text string) string {
	return m.write(t, filepath.Join(m.project, ".mcp-config.json"), text)
}

func (m *machine) load() (*mcpconfig.Config, error) { return m.loadIn(m.project) }

func (m *machine) loadIn(dir string) (*mcpconfig.Config, error) {
	return mcpconfig.Load(mcpconfig.Sources{WorkDir: dir, HomeDir: m.home,
		LookupEnv: func(name string) (string, bool) { v, ok := m.env[name]; return v, ok }})
}

func (m *machine) mustLoad(t *testing.T) *mcpconfig.Config {
	t.Helper()
	c, err := m.load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// REQ-CONFIG-006, REQ-PROJECT-003, REQ-USE-008, REQ-LOG-004, REQ-DATA-007
// REQ-GUIDE-DEFAULTS
func TestDefaults(t *testing.T) {
	m := newMachine(t)
	c := m.mustLoad(t)
	want := []mcpconfig.Channel{
		{Name: "roadmap", Description: "Discussion about project roadmap and planning", MaxMessages: 10000, MaxBytes: 10485760, MaxAge: "24h"},
		{Name: "parallel-work", Description: "Coordination for parallel work among agents", MaxMessages: 10000, MaxBytes: 10485760, MaxAge: "24h"},
		{Name: "errors", Description: "Error reporting and troubleshooting", MaxMessages: 5000, MaxBytes: 10485760, MaxAge: "48h"},
	}
	if diff := cmp.Diff(want, c.Channels); diff != "" {
		t.Error(diff)
	}
	if c.Logging.Level != "INFO" || c.Logging.Format != "json" || !c.Autostart || c.NATSURL != "" || c.File != "" || c.Version != 1 {
		t.Errorf("got %+v", c)
	}
	if _, ok := c.Channel("errors"); !ok {
		t.Error("the channel errors is not found")
	}
	if _, ok := c.Channel("nowhere"); ok {
		t.Error("the channel nowhere is found")
	}
}

// REQ-DESIGN-CONFIG-001, REQ-ENV-CROSS-002: environment over project over user over defaults.
// REQ-CONFIG-001, REQ-LOG-003
func TestHigherLayersOverrideLowerOnes(t *testing.T) {
	m := newMachine(t)
	user := m.writeUser(t, `{"logging": {"level": "ERROR", "format": "text"}, "natsUrl": "nats://user:4222", "namespace": "from-user"}`)
	project := m.writeProject(t, "{\n  \"natsUrl\": \"nats://project:4222\",\n  \"logging\": {\"level\": \"WARN\"}\n}")
	m.env["LOG_LEVEL"] = "debug"
	m.env["NATS_USERNAME"] = "ann"
	m.env["LOG_FORMAT"] = ""
	c := m.mustLoad(t)
	if c.Logging.Level != "DEBUG" || c.Logging.Format != "text" || c.NATSURL != "nats://project:4222" ||
		c.Namespace != "from-user" || c.Credentials.Username != "ann" {
		t.Errorf("got %+v", c.Document)
	}
	origins := map[string]string{}
	for path, origin := range c.Origins {
		origins[path] = origin.String()
	}
	want := map[string]string{
		"logging.level":            "environment (LOG_LEVEL)",
		"logging.format":           fmt.Sprintf("user (%s:1)", user),
		"namespace":                fmt.Sprintf("user (%s:1)", user),
		"natsUrl":                  fmt.Sprintf("project (%s:2)", project),
		"natsCredentials.username": "environment (NATS_USERNAME)",
	}
	if diff := cmp.Diff(want, origins); diff != "" {
		t.Error(diff)
	}
	if c.Logging.SlogLevel() != slog.LevelDebug {
		t.Error("the level for slog is", c.Logging.SlogLevel())
	}
}

// REQ-DESIGN-CONFIG-002, REQ-SEC-003
func TestEveryVariableSetsItsValue(t *testing.T) {
	values := map[string]string{
		"natsUrl": "tls://h:4222", "natsCredentials.username": "u", "natsCredentials.password": "p",
		"natsTls.cert": "c", "natsTls.key": "k", "natsTls.ca": "a", "logging.level": "ERROR", "logging.format": "text",
		"namespace": "ns", "autostart": "0", "searchParents": "2",
		"natsCredentials.nkeyFile": "/n", "natsCredentials.credsFile": "/c", "natsCredentials.token": "t",
	}
	for _, v := range mcpconfig.Variables() {
		if strings.HasPrefix(v.Path, "crossComputer.") || strings.HasPrefix(v.Path, "workQueue.") {
			continue // see TestEveryVariableOfTheNetworkSetsItsValue
		}
		t.Run(v.Name, func(t *testing.T) {
			m := newMachine(t)
			m.env[v.Name] = values[v.Path]
			if v.Path == "natsTls.cert" || v.Path == "natsTls.key" {
				m.env["NATS_TLS_CERT"], m.env["NATS_TLS_KEY"] = "c", "k"
			}
			c := m.mustLoad(t)
			got := map[string]string{
				"natsUrl": string(c.NATSURL), "natsCredentials.username": c.Credentials.Username, "natsCredentials.password": string(c.Credentials.Password),
				"natsTls.cert": c.TLS.Cert, "natsTls.key": c.TLS.Key, "natsTls.ca": c.TLS.CA, "logging.level": c.Logging.Level,
				"logging.format": c.Logging.Format, "namespace": c.Namespace, "searchParents": fmt.Sprint(c.Parents),
				"natsCredentials.nkeyFile": c.Credentials.NKeyFile, "natsCredentials.credsFile": c.Credentials.CredsFile,
				"natsCredentials.token": string(c.Credentials.Token),
				"autostart":             map[bool]string{true: "1", false: "0"}[c.Autostart],
			}
			if got[v.Path] != values[v.Path] {
				t.Errorf("%s is %q, want %q", v.Path, got[v.Path], values[v.Path])
			}
			if c.Origins[v.Path].Name != v.Name {
				t.Errorf("origin %v", c.Origins[v.Path])
			}
		})
	}
}

// REQ-CONFIG-002, REQ-CONFIG-007, REQ-CONFIG-008, REQ-DESIGN-CONFIG-004,
// REQ-USE-007, REQ-NAMESPACE-003, REQ-DESIGN-NS-004
// REQ-CONFIG-004, REQ-DESIGN-CONFIG-003
func TestErrorsOfAConfigurationHaveThePosition(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "{\n  \"chanels\": []\n}", `FILE:2:3: chanels: unknown key; did you mean "channels"?`},
		{"channel without description", `{"channels": [{"name": "a"}]}`, `FILE:1:15: channels[0].description: required, but missing`},
		{"channel name", `{"channels": [{"name": "Big Talk", "description": "d"}]}`, `FILE:1:24: channels[0].name: "Big Talk" does not match ^[a-z0-9-]+$`},
		{"channel twice", "{\"channels\": [{\"name\": \"a\", \"description\": \"d\"},\n{\"name\": \"a\", \"description\": \"d\"}]}",
			`FILE:2:10: channels[1].name: the name "a" is a duplicate of channels[0]`},
		{"age", `{"channels": [{"name": "a", "description": "d", "maxAge": "1 day"}]}`, `FILE:1:59: channels[0].maxAge: "1 day" does not match`},
		{"age too long", `{"channels": [{"name": "a", "description": "d", "maxAge": "999999999d"}]}`, `FILE:1:59: channels[0].maxAge: "999999999d" is not a duration`},
		{"age too short", `{"channels": [{"name": "a", "description": "d", "maxAge": "1ms"}]}`, `FILE:1:59: channels[0].maxAge: "1ms" is shorter than 100ms`},
		{"no messages", `{"channels": [{"name": "a", "description": "d", "maxMessages": 0}]}`, `FILE:1:64: channels[0].maxMessages: 0 is too small; the least is 1`},
		{"few bytes", `{"channels": [{"name": "a", "description": "d", "maxBytes": 1023}]}`, `channels[0].maxBytes: 1023 is too small; the least is 1024`},
		{"level", `{"logging": {"level": "TRACE"}}`, `logging.level: "TRACE" is not allowed; allowed: DEBUG, INFO, WARN, ERROR`},
		{"url", `{"natsUrl": "http://x"}`, `natsUrl: "http://x" does not match`},
		{"url with a password", `{"natsUrl": "http://u:hunter2@x"}`, `natsUrl: "http://(hidden)@x" does not match`},
		{"namespace", `{"namespace": "a.b"}`, `namespace: "a.b" does not match`},
		{"reserved namespace", `{"namespace": "global"}`, `FILE:1:15: namespace: "global" is reserved`},
		{"future version", `{"version": 2}`, `version: 2 is too large; the most is 1`},
		{"half a certificate", `{"natsTls": {"cert": "c"}}`, `FILE:1:22: natsTls: a client certificate and its key belong together`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			path := m.writeProject(t, tt.text)
			_, err := m.load()
			want := strings.ReplaceAll(tt.want, "FILE", path)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("got %v\nwant %s", err, want)
			}
		})
	}
}

func TestEveryLayersProblemsAreReportedAtOnce(t *testing.T) {
	m := newMachine(t)
	m.writeUser(t, `{"a": 1}`)
	m.writeProject(t, `{"b": 1, "c": 2}`)
	m.env["LOG_LEVEL"] = "loud"
	_, err := m.load()
	if err == nil || strings.Count(err.Error(), "\n") != 4 || !strings.Contains(err.Error(), `LOG_LEVEL: logging.level: "LOUD" is not allowed`) {
		t.Fatal(err)
	}
}

// REQ-PROJECT-001, REQ-PROJECT-004
// REQ-PROJECT-007, REQ-PORT-004, REQ-DESIGN-NS-003
func TestTheProjectIsFoundInParentDirectories(t *testing.T) {
	m := newMachine(t)
	path := m.writeProject(t, `{"namespace": "mono"}`)
	deep := filepath.Join(m.project, "1", "2", "3", "4", "5")
	if err := os.MkdirAll(filepath.Join(deep, "6"), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := m.loadIn(deep)
	if err != nil || c.File != path || c.ProjectPath != m.project || c.Namespace != "mono" {
		t.Errorf("five levels down: %+v, %v", c, err)
	}
	if c, err = m.loadIn(filepath.Join(deep, "6")); err != nil || c.File != "" {
		t.Errorf("six levels down: %+v, %v", c, err)
	}
	m.env["NATS_MCP_SEARCH_PARENTS"] = "6"
	if c, err = m.loadIn(filepath.Join(deep, "6")); err != nil || c.File != path {
		t.Errorf("six levels down with six allowed: %+v, %v", c, err)
	}
	m.env["MCP_PROJECT_PATH"] = m.project
	if c, err = m.loadIn(m.home); err != nil || c.File != path {
		t.Errorf("by MCP_PROJECT_PATH: %+v, %v", c, err)
	}
	m.env["MCP_PROJECT_PATH"] = filepath.Join(m.project, "missing")
	if _, err = m.loadIn(m.home); err == nil || !strings.Contains(err.Error(), "MCP_PROJECT_PATH") {
		t.Errorf("a missing project: %v", err)
	}
}

// REQ-PORT-004
func TestAConfiguredPathMustExist(t *testing.T) {
	m := newMachine(t)
	m.env["MCP_CONFIG_PATH"] = "other.json"
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "MCP_CONFIG_PATH: there is no file") {
		t.Error(err)
	}
	path := m.write(t, filepath.Join(m.project, "other.json"), `{"namespace": "other"}`)
	if c := m.mustLoad(t); c.File != path || c.Namespace != "other" || c.ProjectPath != m.project {
		t.Errorf("got %+v", c)
	}
}

// REQ-NAMESPACE-001, REQ-NAMESPACE-002, REQ-NAMESPACE-008, REQ-DESIGN-NS-001,
// REQ-DESIGN-NS-002, REQ-PROJECT-002, REQ-PROJECT-005
func TestTheNamespaceIsComputedFromThePath(t *testing.T) {
	m := newMachine(t)
	first, second := m.mustLoad(t), m.mustLoad(t)
	if first.Namespace != second.Namespace || first.Namespace != "project-"+first.ProjectID || len(first.ProjectID) != 16 {
		t.Errorf("%q, %q", first.Namespace, second.Namespace)
	}
	other, err := m.loadIn(m.home)
	if err != nil || other.Namespace == first.Namespace {
		t.Errorf("two projects have the namespace %q (%v)", other.Namespace, err)
	}
	link := filepath.Join(filepath.Dir(m.project), "link")
	if err := os.Symlink(m.project, link); err != nil {
		t.Fatal(err)
	}
	linked, err := m.loadIn(link)
	if err != nil || linked.Namespace != first.Namespace {
		t.Errorf("through a link: %q, want %q (%v)", linked.Namespace, first.Namespace, err)
	}
	if got := mcpconfig.ProjectID("/home/ann/project"); got != "78a036e7334eb983" {
		t.Errorf("the identity of a path has changed: %s", got)
	}
}

func TestParseAges(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"100ms": 100 * time.Millisecond, "90s": 90 * time.Second, "30m": 30 * time.Minute, "24h": 24 * time.Hour, "7d": 168 * time.Hour,
		"200000us": 200 * time.Millisecond, "100000000ns": 100 * time.Millisecond,
	} {
		if got, err := (mcpconfig.Channel{MaxAge: text}).Age(); err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "h", "1", "1.5h", "-1h", "99999999999999999999d"} {
		if got, err := (mcpconfig.Channel{MaxAge: text}).Age(); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// REQ-SEC-004, REQ-LOG-008
func TestThePasswordIsNeverShown(t *testing.T) {
	m := newMachine(t)
	m.env["NATS_USERNAME"], m.env["NATS_PASSWORD"] = "ann", "hunter2"
	c := m.mustLoad(t)
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "credentials", c.Credentials, "config", c)
	shown, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v", c, c, c), fmt.Sprint(c.Credentials), string(shown), log.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("the password is in %s", text)
		}
	}
}

// REQ-SEC-004, REQ-SEC-TEST-003: a URL can hold a password or a token.
func TestAURLsCredentialsAreNeverShown(t *testing.T) {
	for url, want := range map[mcpconfig.URL]string{
		"":                                      "",
		"nats://h:4222":                         "nats://h:4222",
		"tls://u:hunter2@h":                     "tls://(hidden)@h",
		"nats://hunter2@h:1":                    "nats://(hidden)@h:1",
		"nats://u:hun@ter2@h":                   "nats://(hidden)@h",
		"nats://u:hun,ter2@h":                   "nats://(hidden)@h",
		"nats://u:hun/t?#r2@h":                  "nats://(hidden)@h",
		"nats://a,wss://u:hunter2@b:1,nats://c": "nats://a,wss://(hidden)@b:1,nats://c",
		"u:hunter2@h":                           "(hidden)",
	} {
		encoded, err := json.Marshal(map[string]any{"url": url})
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "url", url)
		if got := url.String(); got != want {
			t.Errorf("%q is shown as %q, want %q", string(url), got, want)
		}
		if all := fmt.Sprintf("%v %+v %#v %s %s", url, url, url, encoded, log.String()); strings.Contains(all, "ter2") || strings.Contains(all, "hun") {
			t.Errorf("the password is in %s", all)
		}
	}
}

// REQ-USE-007
func TestValuesHaveTheirOrigin(t *testing.T) {
	m := newMachine(t)
	path := m.writeProject(t, "{\n\"channels\": [\n{\"name\": \"a\", \"description\": \"d\"}],\n\"natsUrl\": \"nats://u:p@h\", \"autostart\": false}")
	m.env["NATS_PASSWORD"] = "hunter2"
	c := m.mustLoad(t)
	var got []string
	for _, v := range c.Values() {
		if strings.HasPrefix(v.Key, "crossComputer.") || strings.HasPrefix(v.Key, "workQueue.") {
			continue // see TestEveryVariableOfTheNetworkSetsItsValue
		}
		text, err := json.Marshal(v.Value)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", v.Key, text, v.Origin))
	}
	project := func(line int) string { return fmt.Sprintf("project (%s:%d)", path, line) }
	want := []string{
		`version 1 default`,
		fmt.Sprintf(`namespace "%s" derived (%s)`, c.Namespace, m.project),
		`channels[0] {"name":"a","description":"d","maxMessages":10000,"maxBytes":10485760,"maxAge":"24h"} ` + project(2),
		`natsUrl "nats://(hidden)@h" ` + project(4),
		`natsCredentials.password "(hidden)" environment (NATS_PASSWORD)`,
		`logging.level "INFO" default`,
		`logging.format "json" default`,
		`autostart false ` + project(4),
		`searchParents 5 default`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// REQ-CONFIG-001, REQ-CONFIG-003, REQ-CONFIG-004, REQ-CONFIG-005, REQ-DATA-006,
// REQ-LEGAL-005, REQ-DESIGN-NS-003: the example of section 12.3.
func TestAProjectDefinesItsChannels(t *testing.T) {
	m := newMachine(t)
	m.writeProject(t, `{
  "namespace": "my-project",
  "channels": [
    {"name": "planning", "description": "Sprint planning and prioritization", "maxMessages": 5000, "maxAge": "7d"},
    {"name": "implementation", "description": "Development work coordination", "maxBytes": 2048},
    {"name": "review", "description": "Code review discussions"}
  ]
}`)
	c := m.mustLoad(t)
	want := []mcpconfig.Channel{
		{Name: "planning", Description: "Sprint planning and prioritization", MaxMessages: 5000, MaxBytes: 10485760, MaxAge: "7d"},
		{Name: "implementation", Description: "Development work coordination", MaxMessages: 10000, MaxBytes: 2048, MaxAge: "24h"},
		{Name: "review", Description: "Code review discussions", MaxMessages: 10000, MaxBytes: 10485760, MaxAge: "24h"},
	}
	if diff := cmp.Diff(want, c.Channels); diff != "" || c.Namespace != "my-project" {
		t.Errorf("namespace %s, %s", c.Namespace, diff)
	}
}

// REQ-GUIDE-ENV: the table of section 14.
func TestTheSpecifiedVariablesAreRead(t *testing.T) {
	known := map[string]bool{"MCP_CONFIG_PATH": true, "MCP_PROJECT_PATH": true} // have tests of their own
	for _, v := range mcpconfig.Variables() {
		known[v.Name] = true
	}
	for _, name := range []string{"NATS_URL", "NATS_USERNAME", "NATS_PASSWORD", "NATS_TLS_CERT", "NATS_TLS_KEY", "NATS_TLS_CA",
		"LOG_LEVEL", "LOG_FORMAT", "MCP_CONFIG_PATH"} {
		if !known[name] {
			t.Errorf("%s is not read", name)
		}
	}
}

// REQ-GUIDE-SCHEMA: the shipped schema has what section 13 says of each key.
func TestTheSchemaHasTheSpecifiedKeys(t *testing.T) {
	data, err := os.ReadFile(filepath.FromSlash("../../../schema/mcp-config.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document any
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	at := func(path ...string) any {
		value := document
		for _, key := range path {
			object, _ := value.(map[string]any)
			value = object[key]
		}
		return value
	}
	channel := []string{"properties", "channels", "items"}
	of := func(prefix []string, path ...string) []string {
		return append(prefix[:len(prefix):len(prefix)], path...)
	}
	for _, tt := range []struct {
		path []string
		want any
	}{
		{[]string{"type"}, "object"},
		{[]string{"properties", "namespace", "pattern"}, "^[a-z0-9-]+$"},
		{of(channel, "required"), []any{"name", "description"}},
		{of(channel, "properties", "name", "pattern"), "^[a-z0-9-]+$"},
		{of(channel, "properties", "description", "type"), "string"},
		{of(channel, "properties", "maxMessages", "minimum"), 1.0},
		{of(channel, "properties", "maxMessages", "default"), 10000.0},
		{of(channel, "properties", "maxBytes", "minimum"), 1024.0},
		{of(channel, "properties", "maxBytes", "default"), 10485760.0},
		{of(channel, "properties", "maxAge", "pattern"), "^[0-9]+(ns|us|ms|s|m|h|d)$"},
		{of(channel, "properties", "maxAge", "default"), "24h"},
		{[]string{"properties", "natsUrl", "type"}, "string"},
		{[]string{"properties", "natsUrl", "format"}, "uri"},
		{[]string{"properties", "natsCredentials", "properties", "username", "type"}, "string"},
		{[]string{"properties", "natsCredentials", "properties", "password", "type"}, "string"},
		{[]string{"properties", "logging", "properties", "level", "enum"}, []any{"DEBUG", "INFO", "WARN", "ERROR"}},
		{[]string{"properties", "logging", "properties", "level", "default"}, "INFO"},
		{[]string{"properties", "logging", "properties", "format", "enum"}, []any{"json", "text"}},
		{[]string{"properties", "logging", "properties", "format", "default"}, "json"},
	} {
		if diff := cmp.Diff(tt.want, at(tt.path...)); diff != "" {
			t.Errorf("%s: %s", strings.Join(tt.path, "."), diff)
		}
	}
}

// The file of a cloned repository must not lead the user's password to its own server.
func TestCredentialsStayWithTheirServer(t *testing.T) {
	for name, tt := range map[string]struct {
		project string
		env     map[string]string
		want    string // the password
	}{
		"no project's file":           {"", nil, "hunter2"},
		"the same server":             {`{"natsUrl": "tls://mine:4222"}`, nil, "hunter2"},
		"another server":              {`{"natsUrl": "tls://stranger:4222"}`, nil, ""},
		"another with its own":        {`{"natsUrl": "tls://stranger:4222", "natsCredentials": {"username": "a", "password": "theirs"}}`, nil, "theirs"},
		"another and the environment": {`{"natsUrl": "tls://stranger:4222"}`, map[string]string{"NATS_PASSWORD": "asked for"}, "asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.writeUser(t, `{"natsUrl": "tls://mine:4222", "natsCredentials": {"username": "ann", "password": "hunter2"}}`)
			if tt.project != "" {
				m.writeProject(t, tt.project)
			}
			m.env = tt.env
			c := m.mustLoad(t)
			if string(c.Credentials.Password) != tt.want || (c.Credentials.Username == "ann") != (tt.want == "hunter2") {
				t.Errorf("got %q and %q at %s", c.Credentials.Username, c.Credentials.Password, c.NATSURL)
			}
		})
	}
}

func TestOnlyTheFirstProblemsAreListed(t *testing.T) {
	m := newMachine(t)
	m.writeProject(t, `{"a0": 0`+strings.Repeat(`, "a": 1`, 5000)+`}`)
	_, err := m.load()
	e, ok := err.(*mcpconfig.Error)
	if !ok || len(e.Problems) != mcpconfig.MaxProblems+1 || !strings.HasSuffix(e.Error(), "further problems") {
		t.Errorf("%d problems: %.200v", len(e.Problems), err)
	}
}

func TestAHugeFileIsRefused(t *testing.T) {
	m := newMachine(t)
	m.writeProject(t, strings.Repeat(" ", mcpconfig.MaxFileSize+1))
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestAFileThatCannotBeReadIsAnError(t *testing.T) {
	m := newMachine(t)
	if err := os.Mkdir(filepath.Join(m.project, ".mcp-config.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Error(err)
	}
}

// REQ-DEPLOY-008: the shipped schema is that of the program.
func TestTheShippedSchemaIsFresh(t *testing.T) {
	want, err := json.MarshalIndent(mcpconfig.Schema(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.FromSlash("../../../schema/mcp-config.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want)+"\n" {
		t.Error("the schema is stale: run go run ./tools/docs")
	}
}

// REQ-CONFIG-002, REQ-DATA-003
func TestSchemaAndProgramAgree(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	schema, err := compiler.Compile(filepath.FromSlash("../../../schema/mcp-config.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{}`,
		`{"namespace": "my-project", "channels": [{"name": "planning", "description": "Sprint planning", "maxMessages": 5000, "maxAge": "7d"}]}`,
		`{"natsUrl": "nats://localhost:4222", "natsCredentials": {"username": "u"}, "logging": {"level": "WARN", "format": "text"}}`,
		`{"namespace": "A"}`, `{"channels": [{"name": "a"}]}`, `{"channels": [{"name": "a", "description": "d", "x": 1}]}`,
		`{"channels": {}}`, `{"logging": {"level": "info"}}`, `{"version": 0}`, `{"version": 3}`, `{"natsUrl": 1}`,
		`{"channels": [{"name": "a", "description": "d", "maxBytes": 1}]}`, `{"autostart": "no"}`, `[]`, `null`,
	} {
		m := newMachine(t)
		m.writeProject(t, text)
		_, err := m.load()
		value, decodeErr := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if decodeErr != nil {
			t.Fatal(decodeErr)
		}
		if schemaErr := schema.Validate(value); (schemaErr == nil) != (err == nil) {
			t.Errorf("%s: the schema says %v, the program %v", text, schemaErr, err)
		}
	}
}
