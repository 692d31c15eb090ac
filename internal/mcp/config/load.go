package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/rawjson"
	"github.com/parleyhub/parley/internal/base/text"
)

// Sources are the inputs of Load. The zero value is the process's own environment and directories.
type Sources struct {
	LookupEnv func(string) (string, bool) // os.LookupEnv by default
	WorkDir   string                      // the current directory by default
	HomeDir   string                      // the user's home directory by default
	// ForOthers is set if a program chooses WorkDir that may not be the user's. Then the project's file must be a regular
	// file of the user and no link, so that nobody learns what other files contain, or chooses a server by a file of his own.
	ForOthers bool
}

// Problem is an error in one of the layers. Line and Column are 0 if it has no position in a file.
type Problem struct {
	Source  string `json:"source"` // the file or the environment variable
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // in the document
	Message string `json:"message"`
}

// String returns "source:line:column: path: message".
func (p Problem) String() string {
	text := p.Source
	if p.Line > 0 {
		text += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	if p.Path != "" {
		text += ": " + p.Path
	}
	return text + ": " + p.Message
}

// MaxProblems bounds the problems that an [Error] lists; it only counts further ones.
const MaxProblems = 100

// Error is an invalid configuration, with all of its problems.
type Error struct{ Problems []Problem }

// Error lists the problems, one on each line.
func (e *Error) Error() string {
	lines := []string{"the configuration is wrong:"}
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Load finds the project and loads its configuration. The error is an *Error.
func Load(src Sources) (*Config, error) {
	src, err := src.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &loader{src: src, config: &Config{Document: defaults(), Origins: map[string]Origin{}}}
	return l.load()
}

func (s Sources) withDefaults() (Sources, error) {
	var err error
	if s.LookupEnv == nil {
		s.LookupEnv = os.LookupEnv
	}
	if s.WorkDir == "" {
		if s.WorkDir, err = os.Getwd(); err != nil {
			return s, &Error{Problems: []Problem{{Source: "the current directory", Message: "it no longer exists; change to another one"}}}
		}
	}
	if s.HomeDir == "" {
		s.HomeDir, _ = os.UserHomeDir() // a service may have none
	}
	return s, nil
}

func defaults() Document {
	return Document{
		Version:   Version,
		Channels:  DefaultChannels(),
		Logging:   Logging{Level: "INFO", Format: "json"},
		Autostart: true,
		Parents:   MaxParents,

		CrossComputer: CrossComputer{RegistryBucket: "agent-registry", HeartbeatInterval: 60, TimeoutThreshold: 180, RegistryTTL: 86400,
			DefaultVisibility: "project-only", TLSRequired: true, RegisterSessions: true, DefaultAgentType: "general", Inboxes: "per-agent"},
		WorkQueue: WorkQueue{AckTimeout: 300, MaxDeliveryAttempts: 3, DeadLetterTTL: 604800},
	}
}

type loader struct {
	src      Sources
	config   *Config
	problems []Problem
}

func (l *loader) load() (*Config, error) {
	if err := l.findProject(); err != nil {
		return nil, err
	}
	if l.src.HomeDir != "" {
		path := filepath.Join(l.src.HomeDir, filepath.FromSlash(UserFile))
		found, err := l.readFile(LayerUser, path)
		if err != nil {
			return nil, err
		}
		if found {
			l.config.UserFile = path
		}
	}
	l.readEnvironment(parentsPath)
	url, cluster := l.config.NATSURL, l.config.CrossComputer.ClusterURL()
	if err := l.readProjectFile(); err != nil {
		return nil, err
	}
	l.readEnvironment("")
	l.keepCredentials(url, cluster)
	l.finish()
	if n := len(l.problems); n > MaxProblems {
		l.problems = append(l.problems[:MaxProblems:MaxProblems], Problem{
			Source: l.problems[MaxProblems].Source, Message: fmt.Sprintf("and %d further problems", n-MaxProblems)})
	}
	if len(l.problems) > 0 {
		return nil, &Error{l.problems}
	}
	return l.config, nil
}

// keepCredentials drops the logins of the user's file if the project's file names another server: the repository may be
// a stranger's. url and cluster are those of the user's file.
func (l *loader) keepCredentials(url, cluster URL) {
	c := l.config
	foreign := func(path string, now, users URL) bool {
		return c.Origins[path].Layer == LayerProject && now != users
	}
	toCluster := foreign("crossComputer.natsClusterUrls", c.CrossComputer.ClusterURL(), cluster)
	if toCluster || foreign("natsUrl", c.NATSURL, url) { // both use natsCredentials
		forget(c, "natsCredentials.username", &c.Credentials.Username)
		forget(c, "natsCredentials.password", &c.Credentials.Password)
		forget(c, "natsCredentials.nkeyFile", &c.Credentials.NKeyFile)
		forget(c, "natsCredentials.credsFile", &c.Credentials.CredsFile)
		forget(c, "natsCredentials.token", &c.Credentials.Token)
	}
	if toCluster {
		forget(c, "crossComputer.token", &c.CrossComputer.Token)
		forget(c, "crossComputer.nkeyFile", &c.CrossComputer.NKeyFile)
		forget(c, "crossComputer.credsFile", &c.CrossComputer.CredsFile)
	}
}

// forget clears the value at a path if the user's file has set it.
func forget[T ~string](c *Config, path string, value *T) {
	if c.Origins[path].Layer == LayerUser {
		*value = ""
		delete(c.Origins, path)
	}
}

// findProject selects MCP_PROJECT_PATH, else the current directory. Symbolic links are resolved, so that a project has
// one identity.
func (l *loader) findProject() error {
	what := "MCP_PROJECT_PATH"
	path, ok := l.src.LookupEnv(what)
	if !ok || path == "" {
		what, path = "the project's directory", l.src.WorkDir
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(l.src.WorkDir, path)
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("%s must be a directory that exists: %w", what, err)
	}
	if info, err := os.Stat(resolved); err == nil && !info.IsDir() {
		return fmt.Errorf("%s must be a directory: %s is a file", what, resolved)
	}
	l.config.ProjectPath = filepath.Clean(resolved)
	return nil
}

// readProjectFile reads MCP_CONFIG_PATH, else the nearest .mcp-config.json from the project's directory upwards. The
// directory of a file found above becomes the project, so that all parts of a monorepo share its channels.
func (l *loader) readProjectFile() error {
	if path, ok := l.src.LookupEnv("MCP_CONFIG_PATH"); ok && path != "" {
		return l.readNamedFile(path)
	}
	dir := l.config.ProjectPath
	for range l.config.Parents + 1 {
		path := filepath.Join(dir, ProjectFile)
		found, err := l.readFile(LayerProject, path)
		if err != nil {
			return err
		}
		if found {
			if dir != l.config.ProjectPath {
				l.checkOwner(path)
			}
			l.config.File, l.config.ProjectPath = path, dir
			return nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil
		}
		dir = parent
	}
	return nil
}

// checkOwner refuses a file above the project's directory that has another owner than the directory: in /tmp, for
// example, anybody can create one, which may name any server.
func (l *loader) checkOwner(path string) {
	if !local.SameOwner(path, l.config.ProjectPath) {
		l.problem(Origin{Name: path}, "", "belongs to another user than "+l.config.ProjectPath+
			": select it with MCP_CONFIG_PATH, or disable the search with NATS_MCP_SEARCH_PARENTS=0")
	}
}

func (l *loader) readNamedFile(path string) error {
	if !filepath.IsAbs(path) {
		path = filepath.Join(l.src.WorkDir, path)
	}
	found, err := l.readFile(LayerProject, path)
	if err != nil {
		return err
	}
	if !found {
		l.problem(Origin{Name: "MCP_CONFIG_PATH"}, "", "there is no file "+path)
		return nil
	}
	l.config.File = path
	return nil
}

// readFile applies a file of one layer. found is false if it does not exist.
func (l *loader) readFile(layer Layer, path string) (found bool, err error) {
	data, err := l.readBounded(layer, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, local.ErrNotDir) {
		return false, nil
	}
	if err != nil {
		l.problems = append(l.problems, Problem{Source: path, Message: "it cannot be read: " + local.Reason(err)})
		return true, nil
	}
	node, bad := rawjson.Parse(data)
	var set map[string]rawjson.Position
	if node != nil {
		set, bad = rawjson.Decode(node, &l.config.Document)
		if len(bad) == 0 {
			bad = checkChannels(node)
		}
	}
	for _, p := range bad {
		l.problems = append(l.problems, Problem{path, p.Line, p.Column, p.Path, p.Message})
	}
	for key, at := range set {
		l.config.Origins[key] = Origin{layer, path, at.Line, at.Column}
	}
	return true, nil
}

func (l *loader) readBounded(layer Layer, path string) ([]byte, error) {
	strict, stat := l.src.ForOthers && layer == LayerProject, os.Stat
	if strict {
		stat = os.Lstat
	}
	info, err := stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe could block forever
		return nil, errors.New("it is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if strict {
		opened, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if !os.SameFile(info, opened) || !local.OwnedByUser(opened) {
			return nil, errors.New("it belongs to another user")
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxFileSize)
	}
	return data, nil
}

// checkChannels checks what the schema does not: duplicate names, and the bounds of ages.
func checkChannels(document *rawjson.Node) []rawjson.Problem {
	var bad []rawjson.Problem
	seen := map[string]int{}
	for i, channel := range members(document, "channels") {
		path := fmt.Sprintf("channels[%d]", i)
		for _, m := range channel {
			text, _ := m.Value.Value.(string)
			first, twice := seen[text]
			switch {
			case m.Key == "name" && twice:
				bad = append(bad, rawjson.Problem{Position: m.Value.Position, Path: path + ".name",
					Message: fmt.Sprintf("the name %q is a duplicate of channels[%d]", text, first)})
			case m.Key == "name":
				seen[text] = i
			case m.Key == "maxAge":
				if _, err := parseAge(text); err != nil {
					bad = append(bad, rawjson.Problem{Position: m.Value.Position, Path: path + ".maxAge", Message: err.Error()})
				}
			}
		}
	}
	return bad
}

// members returns the objects in the list under a key.
func members(document *rawjson.Node, key string) [][]rawjson.Member {
	var objects [][]rawjson.Member
	for _, m := range document.Value.([]rawjson.Member) {
		if m.Key != key {
			continue
		}
		for _, item := range m.Value.Value.([]*rawjson.Node) {
			objects = append(objects, item.Value.([]rawjson.Member))
		}
	}
	return objects
}

// derived matches namespaces that are derived from a project's path, which is easy to guess.
var derived = text.Pattern(`^project-[0-9a-f]{16}$`)

// finish derives values from the layers and checks the result.
func (l *loader) finish() {
	c := l.config
	c.ProjectID = ProjectID(c.ProjectPath)
	own := "project-" + c.ProjectID
	c.Namespace = cmp.Or(c.Namespace, own)
	if c.Origins["namespace"].Layer == LayerProject && c.Namespace != own && derived().MatchString(c.Namespace) {
		l.problem(l.sourceOf("namespace"), "namespace", "is the namespace of another directory's project, which a file must not use; "+
			"choose another name, or set NATS_MCP_NAMESPACE to use it anyway")
	}
	if c.Namespace == GlobalNamespace {
		l.problem(l.sourceOf("namespace"), "namespace", `"global" is reserved for all projects together; choose another name`)
	}
	for i := range c.Channels {
		c.Channels[i] = c.Channels[i].withDefaults()
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		l.problem(l.sourceOf("natsTls.cert", "natsTls.key"), "natsTls", "a client certificate and its key belong together: set both or neither")
	}
	if len(c.Credentials.ways()) > 1 {
		l.problem(l.sourceOf("natsCredentials.nkeyFile", "natsCredentials.credsFile", "natsCredentials.token"), "natsCredentials",
			"there is more than one way to log in: keep one of username and password, nkeyFile, credsFile, token")
	}
	l.checkCrossComputer()
}

// sourceOf returns where the first of the paths that is set was set.
func (l *loader) sourceOf(paths ...string) Origin {
	for _, path := range paths {
		if origin, ok := l.config.Origins[path]; ok {
			return origin
		}
	}
	return Origin{Name: "defaults"}
}

func (l *loader) problem(source Origin, path, message string) {
	l.problems = append(l.problems, Problem{source.Name, source.Line, source.Column, path, message})
}
