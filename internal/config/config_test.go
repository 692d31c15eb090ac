package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// load writes text as config.yaml in a fresh home and loads it.
func load(t *testing.T, text string, env map[string]string, flags ...config.Override) (*config.Loaded, error) {
	t.Helper()
	home := t.TempDir()
	if text != "" {
		write(t, filepath.Join(home, ".a2a-hub", "config.yaml"), text, 0o600)
	}
	return config.Load(config.Options{Home: home, Overrides: flags, LookupEnv: lookup(env)})
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// HUB-CONFIG-DEFAULTS, HUB-HTTP-ADDRESS, HUB-SOCKET-PATH: the defaults are the specification's, and work without a file.
func TestDefaultsNeedNoFile(t *testing.T) {
	l, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Found {
		t.Error("Found is true without a file")
	}
	got := []any{l.Socket, l.HTTP.Enabled, l.HTTP.Host, l.HTTP.Port, filepath.Base(l.DataDir), l.Logging.Level, l.Bus.Durability}
	want := []any{config.Socket{Enabled: true, Path: filepath.Join(l.DataDir, "hub.sock")}, true, "127.0.0.1", 8080, ".a2a-hub", "info", "commit"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(l.Warnings) > 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
}

func TestTheFileOverridesTheDefaults(t *testing.T) {
	l, err := load(t, `
version: 1
http:
  port: 9000
logging: {level: debug, pretty: true}
contexts:
  expiry: 7d
agents:
  claude-code:
    model: opus
    limits:
      run: 10m
    env:
      set: {B: "2"}
  mine:
    driver: exec
    command: my-agent
    parser: jsonl
    jsonl: {type: kind, text: message.text, doneTypes: [end]}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.HTTP.Port != 9000 || l.HTTP.Host != "127.0.0.1" || !*l.Logging.Pretty || l.Contexts.Expiry != 7*24*time.Hour {
		t.Errorf("got %+v %+v %+v", l.HTTP, l.Logging, l.Contexts)
	}
	builtin := runner.Builtin()["claude-code"]
	claude := l.Agents["claude-code"]
	if claude.Model != "opus" || claude.Limits.Run != 10*time.Minute || claude.Env.Set["B"] != "2" {
		t.Errorf("claude-code = %+v", claude)
	}
	if claude.Command != builtin.Command || claude.Driver != builtin.Driver || !cmp.Equal(claude.Probe.Auth, builtin.Probe.Auth) || len(claude.Env.Set) != len(builtin.Env.Set)+1 {
		t.Errorf("a built-in agent lost fields that the file does not set: %+v", claude)
	}
	if mine := l.Agents["mine"]; mine.JSONL.Text != "message.text" || mine.ID != "mine" {
		t.Errorf("mine = %+v", mine)
	}
}

func TestLayersHaveTheirPriority(t *testing.T) {
	env := map[string]string{"PARLEY_HTTP_PORT": "9001", "PARLEY_LOG_LEVEL": "warn"}
	l, err := load(t, "http:\n  port: 9000\n  host: 127.0.0.2\nlogging:\n  level: debug\n", env,
		config.Override{Key: "http.port", Value: "9002", Flag: "--http-port"})
	if err != nil {
		t.Fatal(err)
	}
	if l.HTTP.Port != 9002 || l.Logging.Level != "warn" || l.HTTP.Host != "127.0.0.2" {
		t.Errorf("got %+v %+v", l.HTTP, l.Logging)
	}
	for key, want := range map[string]string{
		"http.port": "--http-port", "logging.level": "PARLEY_LOG_LEVEL", "http.host": l.File + ":3", "socket.path": "default",
	} {
		if got := l.Origin(key).String(); got != want {
			t.Errorf("Origin(%s) = %s, want %s", key, got, want)
		}
	}
}

func TestPathsBecomeAbsolute(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, "etc", "hub.yaml")
	write(t, file, "dataDir: ~/data\nsocket: {path: run/hub.sock}\nworkdirs: {roots: [../src]}\n", 0o600)
	l, err := config.Load(config.Options{Home: home, File: file, LookupEnv: lookup(nil)})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{l.DataDir, l.Socket.Path, l.WorkDirs.Roots[0]}
	want := []string{filepath.Join(home, "data"), filepath.Join(home, "etc/run/hub.sock"), filepath.Join(home, "src")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheDataDirFlagLocatesTheFile(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.yaml"), "http: {port: 9000}\n", 0o600)
	l, err := load(t, "", nil, config.Override{Key: "dataDir", Value: dir, Flag: "--data-dir"})
	if err != nil {
		t.Fatal(err)
	}
	if l.HTTP.Port != 9000 || l.DataDir != dir {
		t.Errorf("port %d, data dir %s", l.HTTP.Port, l.DataDir)
	}
}

func TestProblemsHavePositionAndRemedy(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"unknown key", "http:\n  prot: 1\n", ":2:3: http.prot: unknown key; did you mean port?"},
		{"unknown key without a near one", "zzzzzzzz: 1\n", ":1:1: zzzzzzzz: unknown key; allowed are agents, bus,"},
		{"unknown key of an agent", "agents:\n  echo:\n    limits: {rnu: 1s}\n", ":3:14: agents.echo.limits.rnu: unknown key; did you mean run?"},
		{"text for a number", "http:\n  port: high\n", ":2:9: http.port: expected a whole number, found text"},
		{"a quoted number", "http: {port: \"80\"}\n", "http.port: expected a whole number, found text"},
		{"number for text", "http: {host: 5}\n", "http.host: expected text (write it in quotes), found a whole number"},
		{"number for a duration", "contexts: {expiry: 30}\n", "contexts.expiry: expected a duration such as 30s, 5m or 7d, found a whole number"},
		{"bad duration", "contexts: {expiry: soon}\n", `expected a duration such as 30s, 5m or 7d, found "soon"`},
		{"huge days", "contexts: {expiry: 99999999d}\n", "expected between 0d and 36500d"},
		{"text for a boolean", "socket: {enabled: maybe}\n", "socket.enabled: expected true or false, found text"},
		{"list for a section", "http: [1]\n", ":1:7: http: expected a section with keys, found a list"},
		{"section for a list", "workdirs: {roots: {a: b}}\n", "workdirs.roots: expected a list, found a section"},
		{"scalar document", "hello\n", ":1:1: expected a section with keys, found text"},
		{"duplicate key", "http:\n  port: 1\n  port: 2\n", `:3:3: mapping key "port" already defined at [2:3]`},
		{"syntax", "http: [1\n", ":1:7: "},
		{"second document", "version: 1\n---\nversion: 1\n", "a second document"},
		{"alias", "http: &a {port: 1}\n", "anchors, aliases and tags are not supported"},
		{"version", "version: 2\n", ":1:10: version: this hub reads version 1, not 2"},
		{"port out of range", "http: {port: 70000}\n", "http.port: 70000 is not a port; expected 0 to 65535"},
		{"unknown level", "logging: {level: wran}\n", `logging.level: "wran" is not one of debug, info, warn, error; did you mean warn?`},
		{"unknown parser", "agents:\n  x: {driver: exec, command: y, parser: xml}\n", `:2:41: agents.x.parser: "xml" is not one of`},
		{"new agent without driver", "agents:\n  x:\n    command: y\n", ":3:12: agents.x.driver: is missing"},
		{"new agent without command", "agents: {x: {driver: exec}}\n", "agents.x.command: is missing"},
		{"bad agent id", "agents: {Has Space: {driver: echo}}\n", "agents.Has Space: \"Has Space\" must be 1 to 64 of"},
		{"negative limit", "agents: {echo: {limits: {queue: -1}}}\n", "agents.echo.limits.queue: must not be negative"},
		{"bad tier", "agents: {echo: {tier: 4}}\n", "agents.echo.tier: 4 is not one of 0, 1, 2, 3"},
		{"bad sandbox", "agents: {echo: {sandbox: a b}}\n", "agents.echo.sandbox: must not contain spaces"},
		{"capability twice", "agents: {echo: {capabilities: [{id: x}, {id: x}]}}\n", "agents.echo.capabilities[1].id: repeats"},
		{"capability for all", "agents: {echo: {capabilities: [{id: '*'}]}}\n", "agents.echo.capabilities[0].id: must not be"},
		{"bad peer tier", "node: {peerTier: -1}\n", ":1:18: node.peerTier: -1 is not one of"},
		{"bad agent across sandboxes", "node: {crossSandbox: [a, '']}\n", "node.crossSandbox[1]: is missing"},
		{"small audit files", "node: {audit: {maxFileSize: 10}}\n", "node.audit.maxFileSize: expected between"},
		{"no audit files", "node: {audit: {maxFiles: 1}}\n", "node.audit.maxFiles: expected between"},
		{"bad signal", "agents: {echo: {stop: {signals: [INT, KILLL]}}}\n", "agents.echo.stop.signals: "},
		{"prompt argument", "agents: {x: {driver: exec, command: y, prompt: arg}}\n", "agents.x.promptArgs: needs {prompt} once"},
		{"nobody could reach it", "socket: {enabled: false}\nhttp: {enabled: false}\n", "no client could reach the hub"},
		{"all addresses without a token", "http: {host: 0.0.0.0}\n", "http.host: 0.0.0.0 is not loopback: set PARLEY_HTTP_TOKEN"},
		{"short token", "http: {token: abc}\n", "http.token: must have at least 16"},
		{"origin with a path", "http: {allowedOrigins: [\"https://a.b/c\"]}\n", "http.allowedOrigins[0]: expected an origin"},
		{"one port for two", "http: {port: 9}\ngrpc: {port: 9}\n", "grpc.port: is the same as http.port"},
		{"bus URL", "bus: {url: \"http://x\"}\n", "bus.url: expected URLs such as nats://host:4222"},
		{"bus URL with credentials", "bus: {url: \"nats://u:hunter22@x\"}\n", "bus.url: holds credentials"},
		{"credentials without URL", "bus: {user: u}\n", "bus.user: needs bus.url"},
		{"leaf without URL", "bus: {leaf: {domain: team}}\n", "bus.leaf.domain: needs bus.leaf.url"},
		{"leaf URL", "bus: {leaf: {url: \"ws://x\", domain: team}}\n", "bus.leaf.url: expected URLs such as tls://host:7422"},
		{"leaf URL with credentials", "bus: {leaf: {url: \"tls://u:hunter22@x\", domain: team}}\n", "bus.leaf.url: holds credentials; use bus.leaf.user"},
		{"leaf without domain", "bus: {leaf: {url: \"tls://x\"}}\n", "bus.leaf.domain: set the JetStream domain"},
		{"leaf domain", "bus: {leaf: {url: \"tls://x\", domain: a.b}}\n", "bus.leaf.domain: set the JetStream domain"},
		{"leaf of an external bus", "bus: {url: \"nats://x\", leaf: {url: \"tls://x\", domain: team}}\n", "bus.leaf.url: only the embedded bus"},
		{"path without policy", "agents: {echo: {workdir: {path: x}}}\n", "goes with policy fixed or worktree"},
		{"policy without path", "agents: {echo: {workdir: {policy: fixed}}}\n", "policy fixed needs an absolute path"},
		{"work outside the roots", "agents: {echo: {workdir: {policy: fixed, path: /etc}}}\n", "/etc is not below workdirs.roots"},
		{"missing token file", "http: {tokenFile: nowhere}\n", "http.tokenFile: cannot be read"},
		{"MCP server: neither", "mcpServers: {x: {cwd: /}}\n", "mcpServers.x: expected either command or url"},
		{"MCP server: both", "mcpServers: {x: {command: a, url: \"http://a.b\"}}\n", "mcpServers.x: expected either command or url"},
		{"MCP server: bad name", "mcpServers: {a b: {command: a}}\n", "mcpServers.a b: the name must be up to 64"},
		{"MCP server: an agent's name", "mcpServers: {echo: {command: a}}\n", "mcpServers.echo: an agent already has this name"},
		{"MCP server: headers of a program", "mcpServers: {x: {command: a, headers: {A: b}}}\n", "mcpServers.x.command: cannot be used with headers"},
		{"MCP server: arguments of a URL", "mcpServers: {x: {url: \"http://a.b\", args: [c]}}\n", "mcpServers.x.url: cannot be used with args"},
		{"MCP server: no URL", "mcpServers: {x: {url: \"ftp://a.b\"}}\n", "mcpServers.x.url: expected a URL such as"},
		{"MCP server: credentials in the URL", "mcpServers: {x: {url: \"https://u:hunter22@a.b\"}}\n", "mcpServers.x.url: holds credentials"},
		{"MCP server: headers in the clear", "mcpServers: {x: {url: \"http://a.b\", headers: {A: hunter22}}}\n", "mcpServers.x.url: would send the headers over the network unencrypted"},
		{"MCP server: bad header", "mcpServers: {x: {url: \"https://a.b\", headers: {\"A B\": c}}}\n", "mcpServers.x.headers.A B: is not a valid header"},
		{"MCP server: bad variable", "mcpServers: {x: {command: a, env: {\"A=B\": c}}}\n", "mcpServers.x.env.A=B: is not a valid environment variable"},
		{"MCP server: unknown agent", "mcpServers: {x: {command: a, agents: [nobody]}}\n", "mcpServers.x.agents[0]: there is no agent"},
		{"MCP server: no token file", "mcpServers: {x: {url: \"https://a.b\", tokenFile: nowhere}}\n", "mcpServers.x.tokenFile: cannot be read"},
		{"MCP server: short call timeout", "mcpServers: {x: {command: a, callTimeout: 999ms}}\n", "mcpServers.x.callTimeout: must be from 1s to 24h"},
		{"MCP server: long call timeout", "mcpServers: {x: {command: a, callTimeout: 25h}}\n", "mcpServers.x.callTimeout: must be from 1s to 24h"},
		{"MCP server: negative call timeout", "mcpServers: {x: {command: a, callTimeout: -1s}}\n", "callTimeout: "},
		{"MCP server: call timeout without a unit", "mcpServers: {x: {command: a, callTimeout: 30}}\n", "mcpServers.x.callTimeout: expected a duration"},
		{"deep nesting", strings.Repeat("[", 1000), "more than 64 nested brackets"},
		{"huge file", "#" + strings.Repeat("x", 300<<10), "more than the 262144 allowed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.text, nil)
			var invalid *config.Invalid
			if !errors.As(err, &invalid) {
				t.Fatalf("got %v, want an *Invalid", err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got\n%v\nwant it to contain\n%s", err, tt.want)
			}
			if strings.Contains(err.Error(), "hunter22") {
				t.Error("the message shows a secret")
			}
		})
	}
}

func TestEveryProblemIsReportedInOrder(t *testing.T) {
	_, err := load(t, "htpp: 1\nlogging:\n  levle: x\n  pretty: 3\n", map[string]string{"PARLEY_HTTP_PORT": "x"})
	var invalid *config.Invalid
	if !errors.As(err, &invalid) || len(invalid.Problems) != 4 {
		t.Fatalf("got %v", err)
	}
	if got := invalid.Problems[0].Error(); got != `PARLEY_HTTP_PORT: http.port: expected a whole number, found "x"` {
		t.Errorf("got %s", got)
	}
	if p := invalid.Problems[3]; p.Line != 4 || p.Key != "logging.pretty" {
		t.Errorf("got %+v", p)
	}
}

func TestNamedFileMustExist(t *testing.T) {
	_, err := load(t, "", map[string]string{"PARLEY_CONFIG": filepath.Join(t.TempDir(), "none.yaml")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestTheTokenIsReadFromItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write(t, file, "0123456789abcdef\n", 0o600)
	l, err := load(t, "http: {host: 0.0.0.0}\n", map[string]string{"PARLEY_HTTP_TOKEN_FILE": file})
	if err != nil {
		t.Fatal(err)
	}
	if l.HTTP.Token != "0123456789abcdef" {
		t.Errorf("token %q", l.HTTP.Token)
	}
	for name, text := range map[string]string{"empty": "\n", "two lines": "a\nb\n", "large": strings.Repeat("x", 5000)} {
		write(t, file, text, 0o600)
		if _, err := load(t, "", map[string]string{"PARLEY_HTTP_TOKEN_FILE": file}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTokenAndTokenFileExcludeEachOther(t *testing.T) {
	_, err := load(t, "", map[string]string{"PARLEY_HTTP_TOKEN": "0123456789abcdef", "PARLEY_HTTP_TOKEN_FILE": "x"})
	if err == nil || !strings.Contains(err.Error(), "both http.token and http.tokenFile") {
		t.Errorf("got %v", err)
	}
}

func TestReadableSecretsCauseWarnings(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".a2a-hub", "config.yaml")
	write(t, file, "http: {token: 0123456789abcdef}\nagents: {echo: {env: {set: {KEY: v}}}}\n", 0o600)
	opts := config.Options{Home: home, LookupEnv: lookup(nil)}
	l, err := config.Load(opts)
	if err != nil || len(l.Warnings) != 0 {
		t.Fatalf("0600: %v, warnings %q", err, l.Warnings)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if l, err = config.Load(opts); err != nil {
		t.Fatal(err)
	}
	if len(l.Warnings) != 2 || !strings.Contains(l.Warnings[0], "run: chmod 600 "+file) {
		t.Errorf("0644: warnings %q", l.Warnings)
	}
}

func TestSymbolicLinkDoesNotLeaveTheRoots(t *testing.T) {
	home := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(home, "innocent")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(home, ".a2a-hub", "config.yaml"),
		"agents: {echo: {workdir: {policy: fixed, path: ~/innocent/new}}}\n", 0o600)
	_, err := config.Load(config.Options{Home: home, LookupEnv: lookup(nil)})
	if err == nil || !strings.Contains(err.Error(), "is not below workdirs.roots") {
		t.Errorf("got %v", err)
	}
}

func TestSecretsAreThoseOfTheConfigurationThatMustNotBeShown(t *testing.T) {
	l, err := load(t, `
http: {token: the-token-of-http}
bus: {url: "nats://localhost:4222", user: u, password: bus-password}
agents: {echo: {env: {set: {API_TOKEN: the-api-token, LANG: C.UTF-8}}}}
mcpServers: {s: {url: "https://example.org/mcp", headers: {Authorization: "Bearer the-header"}}}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := l.Secrets()
	slices.Sort(got)
	want := []string{"Bearer the-header", "bus-password", "the-api-token", "the-header", "the-token-of-http"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRecordsOfTurnsAreBounded(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"tasks: {trace: {maxBytes: 100}}\n", "tasks.trace.maxBytes: expected between"},
		{"tasks: {trace: {maxBytes: 2000000}}\n", "tasks.trace.maxBytes: expected between"},
		{"tasks: {trace: {maxBytes: 65536, totalBytes: 65535}}\n", "tasks.trace.totalBytes: expected at least"},
		{"tasks: {trace: {retention: 1s}}\n", "tasks.trace.retention"},
	} {
		if _, err := load(t, tt.text, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.text, err)
		}
	}
	l, err := load(t, "tasks: {trace: {enabled: false}}\n", nil)
	if err != nil || l.Tasks.Trace.Enabled || l.Tasks.Trace.MaxBytes != 256<<10 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestValuesHideSecrets(t *testing.T) {
	l, err := load(t, "http: {token: hunter2hunter2hunter2}\ncontexts: {expiry: 90m}\nagents: {echo: {env: {set: {KEY: hunter2}}}}\n",
		map[string]string{"PARLEY_HTTP_PORT": "9001"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, v := range l.Values() {
		got[v.Key] = v.Value
		if s, ok := v.Value.(string); ok && strings.Contains(s, "hunter2") {
			t.Errorf("%s shows a secret", v.Key)
		}
	}
	for key, want := range map[string]any{
		"http.token": config.Secret, "agents.echo.env.set.KEY": config.Secret, "http.port": 9001,
		"contexts.expiry": "1h30m", "tasks.retention": "90d", "agents.claude-code.command": "claude",
	} {
		if got[key] != want {
			t.Errorf("%s = %v, want %v", key, got[key], want)
		}
	}
	if _, ok := got["agents.gemini.model"]; ok {
		t.Error("an empty value of an agent is listed")
	}
}

func TestHyperswarmIsChecked(t *testing.T) {
	const secret = "hunter2hunter2hunter2"
	for text, want := range map[string]string{
		"{}": "", "{enabled: false}": "peers.enabled", "{listen: '127.0.0.1:0', public: '203.0.113.7:49737', bootstrap: ['hub.example.org:49737'], relay: true}": "",
		"{listen: ':1'}": "peers.hyperswarm.listen", "{listen: '[::1]:1'}": "peers.hyperswarm.listen",
		"{public: 'hub.example.org:1'}": "peers.hyperswarm.public", "{public: '0.0.0.0:1'}": "peers.hyperswarm.public", "{public: '203.0.113.7:0'}": "peers.hyperswarm.public",
		"{bootstrap: [hub]}": "peers.hyperswarm.bootstrap", "{relays: [hub]}": "peers.hyperswarm.relays", "{relay: true}": "peers.hyperswarm.relay",
		"{network: short}": "peers.hyperswarm.network", "{capabilities: true}": "peers.hyperswarm.capabilities", "{network: " + secret + ", capabilities: true}": "",
		"{relays: ['" + "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394" + "']}": "",
	} {
		l, err := load(t, "peers: {enabled: true, hyperswarm: "+text+"}\n", nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil {
			continue
		}
		for _, v := range l.Values() {
			if s, ok := v.Value.(string); ok && strings.Contains(s, secret) {
				t.Errorf("%s shows a secret", v.Key)
			}
		}
	}
}

// The NATS server of peers is checked like that of the bus.
func TestTheNATSServerOfPeersIsChecked(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"{url: 'tls://nats.example.org, nats://b:4222', user: hub, passwordFile: '" + filepath.ToSlash(dir) + "/password'}": "",
		"{url: 'http://nats.example.org'}": "peers.nats.url", "{url: 'nats://u:p@nats.example.org'}": "peers.nats.url", "{url: 'nats://a,'}": "peers.nats.url",
		"{user: hub}": "peers.nats.user", "{tls: {caFile: ca.pem}}": "peers.nats.tls.caFile", "{}": "peers.enabled",
		"{url: 'nats://a', password: x, passwordFile: none}": "peers.nats.passwordFile", "{url: 'nats://a', passwordFile: none}": "peers.nats.passwordFile",
	} {
		l, err := load(t, "peers: {enabled: true, hyperswarm: {enabled: false}, nats: "+text+"}\n", nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", text, err)
		}
		if err != nil {
			continue
		}
		if l.Peers.NATS.Password != "hunter2" {
			t.Error("the password was not read")
		}
		for _, v := range l.Values() {
			if v.Value == "hunter2" {
				t.Errorf("%s shows a secret", v.Key)
			}
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "version: 1\n", "http: {port: 9000, host: localhost}\n", "agents:\n  x:\n    driver: exec\n    command: y\n    args: [a, \"b\"]\n",
		"a: &b c\nd: *b\n", "? x\n: y\n", "- 1\n- 2\n", "http: !!map {port: 1}\n", "<<: {a: b}\n", "x: |\n  text\n", "\xff\xfe", "---\n---\n",
		"logging: {pretty: ~}\n", "contexts: {expiry: 9223372036s}\n", "http: {port: 0x1F}\n", "http: {port: 99999999999999999999}\n", "{{{{", "agents: {x: }",
	} {
		f.Add(seed)
	}
	home := f.TempDir()
	file := filepath.Join(home, "config.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := config.Load(config.Options{Home: home, File: file, LookupEnv: lookup(nil)})
		if err == nil {
			l.Values()
			return
		}
		var invalid *config.Invalid
		if !errors.As(err, &invalid) || len(invalid.Problems) == 0 || err.Error() == "" {
			t.Errorf("%q: %v", text, err)
		}
	})
}

// The settings of an MCP server are those of the file, its timeout is between 1 s and 24 h, and a token becomes a
// header.
func TestMCPServersAreRead(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("of-bad-news\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := load(t, fmt.Sprintf(`mcpServers:
  short: {command: a, callTimeout: 1s}
  long: {command: ./b, callTimeout: 24h, agents: [echo]}
  plain: {command: c}
  far: {url: "https://a.b/mcp", tokenFile: %q, headers: {X: y}}
  off: {disabled: true, callTimeout: 1ms}
`, token), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := cfg.MCPServers
	if s["short"].CallTimeout != time.Second || s["long"].CallTimeout != 24*time.Hour || s["plain"].CallTimeout != 0 {
		t.Errorf("%+v", s)
	}
	if s["plain"].Command != "c" || !filepath.IsAbs(s["long"].Command) {
		t.Errorf("%+v", s)
	}
	if got := s["far"].Headers; len(got) != 2 || got["Authorization"] != "Bearer of-bad-news" || got["X"] != "y" {
		t.Errorf("%d headers", len(got))
	}
}

func TestWhyNoConfigurationIsRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("x", 300))
	for name, test := range map[string]struct {
		home    string
		opts    config.Options
		code    config.Code
		message string
	}{
		"no home":                  {home: "", code: config.CodeNoHome, message: "HOME is not set"},
		"a relative home":          {home: "home", code: config.CodeNoHome, message: "HOME is not an absolute path"},
		"a file as the home":       {home: file},
		"a home that is absent":    {home: filepath.Join(dir, "none")},
		"a missing file":           {home: dir, opts: config.Options{File: filepath.Join(dir, "none")}, code: config.CodeUnreadable, message: "there is no configuration file"},
		"a directory":              {home: dir, opts: config.Options{File: dir}, code: config.CodeUnreadable, message: "is a directory"},
		"a long name":              {home: dir, opts: config.Options{Overrides: []config.Override{{Key: "dataDir", Value: long}}}, code: config.CodeUnreadable, message: "too long"},
		"no home, but a directory": {home: "home", opts: config.Options{Overrides: []config.Override{{Key: "dataDir", Value: dir}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", test.home)
			test.opts.LookupEnv = func(string) (string, bool) { return "", false }
			_, err := config.Load(test.opts)
			e, _ := errors.AsType[*config.Error](err)
			switch {
			case test.code == "" && err != nil:
				t.Error(err)
			case test.code == "":
			case e == nil || e.Code != test.code || !strings.Contains(e.Message, test.message) || e.Remedy == "" || strings.Contains(e.Message, "open "):
				t.Errorf("got %v", err)
			}
		})
	}
}
