package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// REQ-SEC-004: a cloned repository must not send the user's logins to a server of its
// choice, whether the user's file names a server for them or not.
func TestLoginsOfTheUsersFileAreForItsServersOnly(t *testing.T) {
	const (
		across = `"enabled": true, "acknowledgment": "I understand the security implications"`
		ours   = `"natsClusterUrls": ["nats://ours:4222"]`
		theirs = `"natsClusterUrls": ["nats://stranger:4222"]`
	)
	tests := map[string]struct {
		user, project string
		env           map[string]string
		want          bool
	}{
		"the user's file has no server, the project's one": {`{"natsCredentials": {"username": "ann", "password": "hunter2"}}`, `{"natsUrl": "nats://stranger:4222"}`, nil, false},
		"the environment has the last word":                {`{"natsCredentials": {"username": "ann", "password": "hunter2"}}`, `{"natsUrl": "nats://stranger:4222"}`, map[string]string{"NATS_URL": "nats://ours:4222"}, true},
		"a cluster: password":                              {`{"natsCredentials": {"password": "hunter2"}, "crossComputer": {` + ours + `}}`, `{"crossComputer": {` + across + `, ` + theirs + `}}`, nil, false},
		"a server: NKey":                                   {`{"natsCredentials": {"nkeyFile": "hunter2"}}`, `{"natsUrl": "nats://stranger:4222"}`, nil, false},
		"a server: credentials file":                       {`{"natsCredentials": {"credsFile": "hunter2"}}`, `{"natsUrl": "nats://stranger:4222"}`, nil, false},
		"a server: token":                                  {`{"natsCredentials": {"token": "hunter2"}}`, `{"natsUrl": "nats://stranger:4222"}`, nil, false},
		"the user's server: token":                         {`{"natsCredentials": {"token": "hunter2"}, "natsUrl": "nats://ours:4222"}`, `{}`, nil, true},
		"a cluster: token":                                 {`{"crossComputer": {"token": "hunter2"}}`, `{"crossComputer": {` + across + `, ` + theirs + `}}`, nil, false},
		"a cluster: NKey":                                  {`{"crossComputer": {"nkeyFile": "hunter2"}}`, `{"crossComputer": {` + across + `, ` + theirs + `}}`, nil, false},
		"a cluster: credentials file":                      {`{"crossComputer": {"credsFile": "hunter2"}}`, `{"crossComputer": {` + across + `, ` + theirs + `}}`, nil, false},
		"the user's cluster":                               {`{"crossComputer": {"token": "hunter2", ` + ours + `}}`, `{"crossComputer": {` + across + `, ` + ours + `}}`, nil, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.writeUser(t, tt.user)
			m.writeProject(t, tt.project)
			for k, v := range tt.env {
				m.env[k] = v
			}
			c := m.mustLoad(t)
			cross := c.CrossComputer
			login := c.Credentials
			kept := strings.Contains(login.Username+string(login.Password)+string(cross.Token)+cross.NKeyFile+cross.CredsFile, "hunter2") ||
				strings.Contains(string(login.Token)+login.NKeyFile+login.CredsFile, "hunter2")
			if kept != tt.want {
				t.Errorf("the login is used: %t, want %t", kept, tt.want)
			}
		})
	}
}

// In /tmp, or any directory that others may write to, another user can put a file for
// the projects below.
func TestAFileAboveTheProjectMustBelongToTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a file of another user")
	}
	const me, stranger = 1001, 1002
	m := newMachine(t)
	path := m.write(t, filepath.Join(filepath.Dir(m.project), ".mcp-config.json"), `{"namespace": "theirs"}`)
	chown(t, m.project, me)
	for owner, refused := range map[int]bool{stranger: true, me: false, 0: false} {
		chown(t, path, owner)
		_, err := m.load()
		if got := err != nil && strings.Contains(err.Error(), "belongs to another user") && strings.Contains(err.Error(), "NATS_MCP_SEARCH_PARENTS=0"); got != refused {
			t.Errorf("owner %d: %v", owner, err)
		}
	}
	chown(t, path, stranger)
	m.env["NATS_MCP_SEARCH_PARENTS"] = "0"
	if c := m.mustLoad(t); c.Namespace == "theirs" {
		t.Error("the file is read although parent directories are not searched")
	}
	delete(m.env, "NATS_MCP_SEARCH_PARENTS")
	m.env["MCP_CONFIG_PATH"] = path
	if c := m.mustLoad(t); c.Namespace != "theirs" {
		t.Error("the file is not read although it is the configured one")
	}
}

func chown(t *testing.T, path string, uid int) {
	t.Helper()
	if err := os.Chown(path, uid, -1); err != nil {
		t.Fatal(err)
	}
}

// REQ-DESIGN-CONFIG-004
func TestPathsOfTheWrongKindAreRefused(t *testing.T) {
	m := newMachine(t)
	m.env["MCP_CONFIG_PATH"] = m.project
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), m.project+": it cannot be read: it is no regular file") {
		t.Errorf("a directory as the file: %v", err)
	}
	delete(m.env, "MCP_CONFIG_PATH")
	file := m.write(t, filepath.Join(m.project, "main.go"), "package main")
	m.env["MCP_PROJECT_PATH"] = file
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), file+" is a file") {
		t.Errorf("a file as the project: %v", err)
	}
}

// REQ-USE-001, REQ-USE-002
func TestErrorOfAServerWithoutASchemeShowsTheRightURL(t *testing.T) {
	m := newMachine(t)
	m.env["NATS_URL"] = "localhost:4222"
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), `"localhost:4222" does not match ^(nats|tls|ws|wss)://[^\s]+$, for example nats://localhost:4222`) {
		t.Error(err)
	}
}

// REQ-NAMESPACE-007: a cloned repository must not choose the namespace of another
// project, which can be computed from a guessed path.
func TestAProjectsFileCannotChooseAnotherProjectsNamespace(t *testing.T) {
	m := newMachine(t)
	own := m.mustLoad(t).Namespace
	other := "project-" + mcpconfig.ProjectID("/home/ann/src/shop")
	for _, name := range []string{own, "project-1", "project-abc123", "shop"} {
		m.writeProject(t, `{"namespace": "`+name+`"}`)
		if c := m.mustLoad(t); c.Namespace != name {
			t.Errorf("got %s, want %s", c.Namespace, name)
		}
	}
	m.writeProject(t, `{"namespace": "`+other+`"}`)
	if _, err := m.load(); err == nil || !strings.Contains(err.Error(), "another directory's project") || !strings.Contains(err.Error(), "NATS_MCP_NAMESPACE") {
		t.Errorf("the namespace of another project: %v", err)
	}
	m.env["NATS_MCP_NAMESPACE"] = other
	if c := m.mustLoad(t); c.Namespace != other {
		t.Errorf("the namespace that the user chose is %s", c.Namespace)
	}
}

// A project may be somebody else's repository: its file cannot name a key file of the
// user or disable verification.
func TestAProjectsFileCannotChangeKeysOrVerification(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(outside, []byte("SUA..."), 0o600); err != nil {
		t.Fatal(err)
	}
	const across = `"enabled": true, "acknowledgment": "I understand the security implications", "natsClusterUrls": ["nats://x:4222"]`
	for name, tt := range map[string]struct{ user, project, want string }{
		"a key elsewhere":             {"", `"nkeyFile": "` + outside + `"`, "outside of the project"},
		"credentials above":           {"", `"credsFile": "../creds"`, "outside of the project"},
		"by a link":                   {"", `"credsFile": "link"`, "outside of the project"},
		"no verification":             {"", `"insecureSkipVerify": true`, "must not disable the verification"},
		"no TLS for the user's":       {`{"crossComputer": {"natsClusterUrls": ["nats://x:4222"]}}`, `"tlsRequired": false`, "must not disable TLS"},
		"no TLS for its own":          {"", `"tlsRequired": false, ` + across, ""},
		"a key of its own":            {"", `"nkeyFile": "keys/own"`, ""},
		"verification":                {"", `"insecureSkipVerify": false`, ""},
		"the user's file may name it": {`{"crossComputer": {"nkeyFile": "` + outside + `", "insecureSkipVerify": true}}`, `"local": true`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if tt.user != "" {
				m.writeUser(t, tt.user)
			}
			path := m.writeProject(t, `{"crossComputer": {`+tt.project+`}}`)
			if err := os.Symlink(outside, filepath.Join(m.project, "link")); err != nil {
				t.Fatal(err)
			}
			c, err := m.load()
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(tt.project, "keys/own") && c.CrossComputer.NKeyFile != filepath.Join(c.ProjectPath, "keys", "own") {
				t.Errorf("%s", c.CrossComputer.NKeyFile)
			}
		})
	}
	for name, tt := range map[string]struct{ user, project, want string }{
		"a key of TLS elsewhere": {"", `{"natsTls": {"cert": "own.crt", "key": "` + outside + `"}}`, "natsTls.key: a project's file must not refer to a file outside of the project"},
		"a certificate above":    {"", `{"natsTls": {"cert": "../a.crt", "key": "own.key"}}`, "natsTls.cert: a project's file must not refer to a file outside of the project"},
		"a CA elsewhere":         {"", `{"natsTls": {"ca": "` + outside + `"}}`, "natsTls.ca: a project's file must not refer to a file outside of the project"},
		"a CA for the user's":    {`{"natsUrl": "tls://x:4222"}`, `{"natsTls": {"ca": "ca.crt"}}`, "must not set the CA"},
		"a CA of the user's":     {`{"natsUrl": "tls://x:4222", "natsTls": {"ca": "` + outside + `"}}`, `{}`, ""},
		"all of its own":         {"", `{"natsUrl": "tls://x:4222", "natsTls": {"ca": "ca.crt", "cert": "own.crt", "key": "own.key"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if tt.user != "" {
				m.writeUser(t, tt.user)
			}
			path := m.writeProject(t, tt.project)
			c, err := m.load()
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want == "" && strings.Contains(tt.project, "own.key") && c.TLS.Key != filepath.Join(c.ProjectPath, "own.key"):
				t.Errorf("%+v", c.TLS)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path)):
				t.Errorf("%v", err)
			}
		})
	}
	m := newMachine(t)
	m.writeProject(t, `{"crossComputer": {"local": true}}`)
	m.env["NATS_MCP_NKEY_FILE"], m.env["NATS_MCP_INSECURE_SKIP_VERIFY"] = outside, "true"
	if c := m.mustLoad(t); c.CrossComputer.NKeyFile != outside || !c.CrossComputer.InsecureSkipVerify {
		t.Errorf("the environment: %+v", c.CrossComputer)
	}
}

// REQ-SEC-CROSS-002: two ways to log in are a mistake, and so is a file outside of a stranger's project.
func TestOneWayToLogIn(t *testing.T) {
	for project, want := range map[string]string{
		`{"natsCredentials": {"username": "u", "token": "t"}}`:         "more than one way to log in",
		`{"natsCredentials": {"nkeyFile": "n", "credsFile": "c"}}`:     "more than one way to log in",
		`{"natsCredentials": {"nkeyFile": "/etc/nats/seed"}}`:          "must not refer to a file outside of the project",
		`{"natsCredentials": {"credsFile": "../other/project.creds"}}`: "must not refer to a file outside of the project",
	} {
		m := newMachine(t)
		path := m.writeProject(t, project)
		if _, err := m.load(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path+":1:") {
			t.Errorf("%s: %v", project, err)
		}
	}
}

// REQ-SEC-CROSS-002: channels log in as the network does; the same servers need the login only once.
func TestChannelsLogInAsTheNetworkDoes(t *testing.T) {
	cluster := []mcpconfig.URL{"nats://c:4222"}
	d := mcpconfig.Document{NATSURL: "nats://c:4222", CrossComputer: mcpconfig.CrossComputer{NATSClusterURLs: cluster, NKeyFile: "/n"}}
	if got := d.ChannelCredentials(); got.NKeyFile != "/n" {
		t.Errorf("the same server: %+v", got)
	}
	d.NATSURL = "nats://other:4222"
	if got := d.ChannelCredentials(); got.NKeyFile != "" {
		t.Errorf("another server gets the cluster's login: %+v", got)
	}
	d.Credentials.NKeyFile, d.CrossComputer.NKeyFile = "/both", ""
	if d.ChannelCredentials().NKeyFile != "/both" || d.NetworkCredentials().NKeyFile != "/both" {
		t.Errorf("got %+v, %+v", d.ChannelCredentials(), d.NetworkCredentials())
	}
}
