package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// Sources is what Load reads. The zero value reads the process's own
// environment and directories.
type Sources struct {
	// LookupEnv is os.LookupEnv by default.
	LookupEnv func(string) (string, bool)
	// WorkDir is the current directory by default.
	WorkDir string
	// HomeDir is the user's home directory by default.
	HomeDir string
}

// Problem is one thing that is wrong in one of the layers. Line and Column are
// 0 where the source is not a file's text.
type Problem struct {
	Source  string `json:"source"` // the file or the environment variable
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Path    string `json:"path,omitempty"` // in the document
	Message string `json:"message"`
}

// String returns "source:line:column: path: message".
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Source)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	b.WriteString(": ")
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// MaxProblems is how many problems an [Error] lists before it only counts.
const MaxProblems = 100

// Error is a configuration that is refused, with everything that is wrong.
type Error struct{ Problems []Problem }

// Error lists the problems, one a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return "the configuration is wrong:\n" + strings.Join(lines, "\n")
}

// Load finds the project and reads its configuration. The error is an *Error,
// or one of the file system.
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
			return s, fmt.Errorf("find the current directory: %w", err)
		}
	}
	if s.HomeDir == "" {
		// A service without a home has no user's file: that is not an error.
		s.HomeDir, _ = os.UserHomeDir()
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

		CrossComputer: defaultCrossComputer(),
		WorkQueue:     defaultWorkQueue(),
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

// keepCredentials forgets the logins of the user's file where the project's names
// another server than it: they are for the user's own, and the project's may be a
// stranger's, whose repository was cloned. url and cluster are the user's file's.
func (l *loader) keepCredentials(url, cluster URL) {
	c := l.config
	foreign := func(path string, now, users URL) bool {
		return c.Origins[path].Layer == LayerProject && now != users
	}
	toCluster := foreign("crossComputer.natsClusterUrls", c.CrossComputer.ClusterURL(), cluster)
	if toCluster || foreign("natsUrl", c.NATSURL, url) { // both get them
		forget(c, "natsCredentials.username", &c.Credentials.Username)
		forget(c, "natsCredentials.password", &c.Credentials.Password)
	}
	if toCluster {
		forget(c, "crossComputer.token", &c.CrossComputer.Token)
		forget(c, "crossComputer.nkeyFile", &c.CrossComputer.NKeyFile)
		forget(c, "crossComputer.credsFile", &c.CrossComputer.CredsFile)
	}
}

// forget takes back what the user's file has set at a path.
func forget[T ~string](c *Config, path string, value *T) {
	if c.Origins[path].Layer == LayerUser {
		*value = ""
		delete(c.Origins, path)
	}
}

// findProject takes MCP_PROJECT_PATH, else the current directory
// (REQ-PROJECT-001). Links are resolved so that one project has one identity.
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

// readProjectFile reads MCP_CONFIG_PATH, else the nearest .mcp-config.json from
// the project's directory upwards. A file found above makes its directory the
// project, so that every part of a monorepo shares its channels.
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

// checkOwner refuses a file above the project's directory that belongs to somebody
// else than the directory: in /tmp, say, anybody can leave one, and it may name any
// server.
func (l *loader) checkOwner(path string) {
	if !sameOwner(path, l.config.ProjectPath) {
		l.problem(path, "", "belongs to another user than "+l.config.ProjectPath+
			": use it with MCP_CONFIG_PATH, or keep it from being looked for with NATS_MCP_SEARCH_PARENTS=0")
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
		l.problem("MCP_CONFIG_PATH", "", "there is no file "+path)
		return nil
	}
	l.config.File = path
	return nil
}

// readFile lays one file over what is known so far.
func (l *loader) readFile(layer Layer, path string) (found bool, err error) {
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the configuration: %w", err)
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
		l.config.Origins[key] = Origin{layer, path, at.Line}
	}
	return true, nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe could wait for ever
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxFileSize)
	}
	return data, nil
}

// checkChannels finds what a schema cannot say: names that stand twice
// (REQ-CONFIG-008) and ages that are too short or too long.
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
					Message: fmt.Sprintf("the channel %q is there twice; channels[%d] has the name already", text, first)})
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

// members are the objects in the list that stands under key.
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

// derived is the form of namespaces that follow from a project's path. Whoever can
// guess the path knows the namespace.
var derived = regexp.MustCompile(`^project-[0-9a-f]{16}$`)

// finish fills in what follows from the layers.
func (l *loader) finish() {
	c := l.config
	c.ProjectID = ProjectID(c.ProjectPath)
	own := "project-" + c.ProjectID
	if c.Namespace == "" {
		c.Namespace = own
	}
	if c.Origins["namespace"].Layer == LayerProject && c.Namespace != own && derived.MatchString(c.Namespace) {
		l.problem(l.sourceOf("namespace"), "namespace", "is that of another directory's project, whose messages a file must not ask for; "+
			"choose another name, or set NATS_MCP_NAMESPACE if you mean it")
	}
	if c.Namespace == GlobalNamespace {
		l.problem(l.sourceOf("namespace"), "namespace", `"global" is reserved for what all projects share; choose another name`)
	}
	for i := range c.Channels {
		c.Channels[i] = c.Channels[i].withDefaults()
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		l.problem(l.sourceOf("natsTls.cert", "natsTls.key"), "natsTls", "a client certificate and its key belong together: set both or neither")
	}
	l.checkCrossComputer()
}

// sourceOf is the name of where the first of the paths that is set was set.
func (l *loader) sourceOf(paths ...string) string {
	for _, path := range paths {
		if origin, ok := l.config.Origins[path]; ok {
			return origin.Name
		}
	}
	return "defaults"
}

func (l *loader) problem(source, path, message string) {
	l.problems = append(l.problems, Problem{Source: source, Path: path, Message: message})
}
