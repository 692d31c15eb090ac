package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
)

// Variable is an environment variable that sets one key.
type Variable struct{ Name, Key string }

// Variables are the variables that override config.yaml, in the order of the documentation.
// [FileVariable] is not among them.
var Variables = []Variable{
	{"PARLEY_DATA_DIR", "dataDir"},
	{"PARLEY_SOCKET", "socket.path"},
	{"PARLEY_HTTP_HOST", "http.host"},
	{"PARLEY_HTTP_PORT", "http.port"},
	{"PARLEY_HTTP_TOKEN", "http.token"},
	{"PARLEY_HTTP_TOKEN_FILE", "http.tokenFile"},
	{"PARLEY_GRPC_PORT", "grpc.port"},
	{"PARLEY_LOG_LEVEL", "logging.level"},
	{"PARLEY_BUS_URL", "bus.url"},
	{"PARLEY_BUS_DURABILITY", "bus.durability"},
	{"PARLEY_BUS_CREDENTIALS_FILE", "bus.credentialsFile"},
	{"PARLEY_BUS_USER", "bus.user"},
	{"PARLEY_BUS_PASSWORD", "bus.password"},
	{"PARLEY_BUS_PASSWORD_FILE", "bus.passwordFile"},
	{"PARLEY_BUS_LEAF_URL", "bus.leaf.url"},
	{"PARLEY_BUS_LEAF_DOMAIN", "bus.leaf.domain"},
	{"PARLEY_BUS_LEAF_CREDENTIALS_FILE", "bus.leaf.credentialsFile"},
	{"PARLEY_BUS_LEAF_USER", "bus.leaf.user"},
	{"PARLEY_BUS_LEAF_PASSWORD", "bus.leaf.password"},
	{"PARLEY_BUS_LEAF_PASSWORD_FILE", "bus.leaf.passwordFile"},
}

// FileVariable is the variable with the path of the configuration file.
const FileVariable = "PARLEY_CONFIG"

// Override sets one key from a command-line flag.
type Override struct{ Key, Value, Flag string }

// Options are the options of [Load].
type Options struct {
	// File is the configuration file, "" for config.yaml in the data directory. A file set
	// here or by PARLEY_CONFIG must exist.
	File string
	// Overrides are set by the command line.
	Overrides []Override
	// LookupEnv reads the environment; nil means os.LookupEnv.
	LookupEnv func(string) (string, bool)
	// Home is the user's home directory; "" means os.UserHomeDir.
	Home string
}

// Loaded is a configuration with its file, warnings and the origins of its values.
type Loaded struct {
	*Config
	// File is the configuration file; Found is whether it exists.
	File  string
	Found bool
	// Warnings are problems that do not keep the hub from working.
	Warnings []string

	origins map[string]Origin
	home    string
}

// Code is the kind of an [Error].
type Code string

// The codes of an [Error].
const (
	CodeNoHome     Code = "no-home"    // the user has no home directory, where the data directory is by default
	CodeForbidden  Code = "forbidden"  // the user may not read the file, as in another user's data directory
	CodeUnreadable Code = "unreadable" // the file that the user has named does not exist, or cannot be read
)

// Error is why no configuration was read.
type Error = fault.UserError[Code]

func noHome(why string) *Error {
	return &Error{Code: CodeNoHome, Message: "the home directory is unknown (" + why + "), and no data directory is named",
		Remedy: "set HOME, or name a data directory with --data-dir or PARLEY_DATA_DIR"}
}

// names reports whether the environment or a flag sets a key.
func (opts Options) names(key string) bool {
	return slices.ContainsFunc(overrides(opts), func(o layered) bool { return o.Key == key })
}

// OnlySocket returns the socket that the environment or a flag names without a data directory, "" otherwise.
func (opts Options) OnlySocket() string {
	if opts.LookupEnv == nil {
		opts.LookupEnv = os.LookupEnv
	}
	socket := ""
	for _, o := range overrides(opts) {
		switch o.Key {
		case "dataDir":
			return ""
		case "socket.path":
			socket = o.Value
		}
	}
	home, _ := os.UserHomeDir() // without one there is no ~
	return absolute(socket, cmp.Or(opts.Home, home), "")
}

// Names reports whether the command line or the environment, and not only the file, sets a key.
func (l *Loaded) Names(key string) bool {
	kind := l.Origin(key).Kind
	return kind == FromFlag || kind == FromEnvironment
}

// UsersMain reports whether the hub is the one that the user gets without any configuration, by its data directory and
// socket.
func (l *Loaded) UsersMain() bool {
	main := Default(l.home)
	return l.home != "" && l.DataDir == main.DataDir && l.Socket.Path == main.Socket.Path
}

// Load loads the configuration. The error for an invalid configuration is an *[Invalid] with
// every problem; another error means that the file could not be read.
func Load(opts Options) (*Loaded, error) {
	if opts.LookupEnv == nil {
		opts.LookupEnv = os.LookupEnv
	}
	if opts.Home == "" {
		home, err := os.UserHomeDir()
		if err != nil && !opts.names("dataDir") {
			return nil, noHome("HOME is not set")
		}
		if err == nil && !filepath.IsAbs(home) { // it would be another one in each directory
			if home = ""; !opts.names("dataDir") {
				return nil, noHome("HOME is not an absolute path")
			}
		}
		opts.Home = home // "" if the data directory is named: only ~ needs it
	}
	l := &Loaded{home: opts.Home, Config: Default(opts.Home), origins: map[string]Origin{}}
	d := &decoder{origins: l.origins}

	named := l.locate(opts)
	data, err := l.read(named)
	if err != nil {
		return nil, err
	}
	d.file = l.File
	d.document(data, l.Config)
	for _, o := range overrides(opts) {
		d.override(l.Config, o)
	}
	if len(d.problems) == 0 {
		l.resolve(opts.Home, filepath.Dir(l.File))
		l.secrets(d)
		l.check(d)
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b *Problem) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		return nil, &Invalid{Problems: d.problems}
	}
	return l, nil
}

// locate sets the file's path and reports whether the user has set it.
func (l *Loaded) locate(opts Options) (named bool) {
	if opts.File != "" {
		l.File = absolute(opts.File, opts.Home, "")
		return true
	}
	if file, ok := opts.LookupEnv(FileVariable); ok && file != "" {
		l.File = absolute(file, opts.Home, "")
		return true
	}
	dir := l.DataDir
	for _, o := range overrides(opts) {
		if o.Key == "dataDir" {
			dir = absolute(o.Value, opts.Home, "")
		}
	}
	l.File = filepath.Join(dir, "config.yaml")
	return false
}

func (l *Loaded) read(named bool) ([]byte, error) {
	f, err := os.Open(l.File)
	if !named && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, local.ErrNotDir)) {
		return nil, nil // where there is no directory, the use of the data directory fails
	}
	if err != nil {
		return nil, l.unreadable(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, l.unreadable(err)
	}
	l.Found = true
	return data, nil
}

func (l *Loaded) unreadable(err error) *Error {
	e := &Error{Code: CodeUnreadable, Message: fmt.Sprintf("the configuration %s cannot be read: %s", l.File, local.Reason(err)),
		Remedy: "name another file with --config or " + FileVariable + ", or another data directory with --data-dir", Err: err}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Message = CodeForbidden, "your user may not read the configuration "+l.File
		e.Remedy = "if the data directory is another user's, name one of your own with --data-dir or PARLEY_DATA_DIR"
	case errors.Is(err, fs.ErrNotExist):
		e.Message = "there is no configuration file " + l.File
	}
	return e
}

// layered is an override with its origin.
type layered struct {
	Key, Value string
	Origin     Origin
}

// overrides returns the overrides of the environment and then those of the flags.
func overrides(opts Options) []layered {
	var all []layered
	for _, v := range Variables {
		if value, ok := opts.LookupEnv(v.Name); ok && value != "" {
			all = append(all, layered{v.Key, value, Origin{Kind: FromEnvironment, Name: v.Name}})
		}
	}
	for _, o := range opts.Overrides {
		all = append(all, layered{o.Key, o.Value, Origin{Kind: FromFlag, Name: o.Flag}})
	}
	return all
}

func (d *decoder) override(c *Config, o layered) {
	v := reflect.ValueOf(c).Elem()
	for _, name := range strings.Split(o.Key, ".") {
		index, ok := structFields(v.Type())[name]
		if !ok {
			d.problems = append(d.problems, &Problem{Source: o.Origin.Name, Key: o.Key, Message: "no such key"})
			return
		}
		v = v.FieldByIndex(index)
	}
	if err := setScalar(v, o.Value); err != nil {
		d.problems = append(d.problems, &Problem{Source: o.Origin.Name, Key: o.Key, Message: err.Error()})
		return
	}
	d.origins[o.Key] = o.Origin
}

// resolve makes every path absolute: paths in the file are relative to its directory, paths in the
// environment and flags to the working directory.
func (l *Loaded) resolve(home, fileDir string) {
	fix := func(key string, path *string) {
		base := ""
		if l.Origin(key).Kind == FromFile {
			base = fileDir
		}
		*path = absolute(*path, home, base)
	}
	fix("dataDir", &l.DataDir)
	if l.Origin("socket.path").Kind == FromDefault {
		l.Socket.Path = DefaultSocket(l.DataDir)
	}
	fix("socket.path", &l.Socket.Path)
	fix("http.tokenFile", &l.HTTP.TokenFile)
	fix("peers.hyperswarm.networkFile", &l.Peers.Hyperswarm.NetworkFile)
	for _, n := range l.logins() {
		fix(n.key+".credentialsFile", &n.CredentialsFile)
		fix(n.key+".passwordFile", &n.PasswordFile)
		fix(n.key+".nkeyFile", &n.NKeyFile)
		fix(n.key+".tls.caFile", &n.TLS.CAFile)
		fix(n.key+".tls.certFile", &n.TLS.CertFile)
		fix(n.key+".tls.keyFile", &n.TLS.KeyFile)
	}
	for i := range l.WorkDirs.Roots {
		fix(fmt.Sprintf("workdirs.roots[%d]", i), &l.WorkDirs.Roots[i])
	}
	for name, server := range l.MCPServers {
		fix("mcpServers."+name+".cwd", &server.Cwd)
		fix("mcpServers."+name+".tokenFile", &server.TokenFile)
		if filepath.Base(server.Command) != server.Command {
			fix("mcpServers."+name+".command", &server.Command)
		}
		l.MCPServers[name] = server
	}
	for id, def := range l.Agents {
		def.ID = id
		fix("agents."+id+".workdir.path", &def.WorkDir.Path)
		l.Agents[id] = def
	}
}

// login is the login at a NATS server, with the server's key.
type login struct {
	key string
	*NATSLogin
}

func (c *Config) logins() []login {
	return []login{{"bus", &c.Bus.NATSLogin}, {"bus.leaf", &c.Bus.Leaf.NATSLogin}, {"peers.nats", &c.Peers.NATS.NATSLogin}}
}

// absolute expands ~ and makes path absolute below base, or below the working directory if base
// is "". An empty path stays empty.
func absolute(path, home, base string) string {
	if path == "" {
		return ""
	}
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/' || rest[0] == filepath.Separator) {
		return filepath.Join(home, rest)
	}
	if !filepath.IsAbs(path) && base != "" {
		return filepath.Join(base, path)
	}
	abs, err := filepath.Abs(path)
	if err != nil { // the working directory was removed; using the path will fail
		return path
	}
	return abs
}

// maxSecret bounds a file that holds one secret.
const maxSecret = 4 << 10

// secrets reads the files that contain secrets, and warns of files that others may read.
func (l *Loaded) secrets(d *decoder) {
	type secret struct {
		key, fileKey string
		value, file  *string
	}
	all := []secret{
		{"http.token", "http.tokenFile", &l.HTTP.Token, &l.HTTP.TokenFile},
		{"peers.hyperswarm.network", "peers.hyperswarm.networkFile", &l.Peers.Hyperswarm.Network, &l.Peers.Hyperswarm.NetworkFile},
	}
	for _, n := range l.logins() {
		all = append(all, secret{n.key + ".password", n.key + ".passwordFile", &n.Password, &n.PasswordFile})
	}
	for _, s := range all {
		if l.Origin(s.key).Kind == FromFile && *s.value != "" {
			l.warnReadable(l.File, s.key)
		}
		if *s.file == "" {
			continue
		}
		if *s.value != "" {
			d.at(s.fileKey, fmt.Sprintf("both %s and %s are set; remove one", s.key, s.fileKey))
			continue
		}
		secret, err := readSecret(*s.file)
		if err != nil {
			d.at(s.fileKey, err.Error())
			continue
		}
		*s.value = secret
		l.warnReadable(*s.file, "")
	}
	for _, n := range l.logins() {
		for _, file := range []string{n.CredentialsFile, n.NKeyFile, n.TLS.KeyFile} {
			if file != "" {
				l.warnReadable(file, "")
			}
		}
	}
	l.mcpSecrets(d)
	for id, def := range l.Agents {
		if len(def.Env.Set) > 0 && l.Origin("agents."+id+".env.set").Kind == FromFile {
			l.warnReadable(l.File, "agents."+id+".env.set")
		}
	}
}

// mcpSecrets adds the bearer tokens of MCP servers to their headers.
func (l *Loaded) mcpSecrets(d *decoder) {
	for name, server := range l.MCPServers {
		key := "mcpServers." + name
		if len(server.Env)+len(server.Headers) > 0 {
			l.warnReadable(l.File, key)
		}
		if server.TokenFile == "" || server.Disabled {
			continue
		}
		token, err := readSecret(server.TokenFile)
		if err != nil {
			d.at(key+".tokenFile", err.Error())
			continue
		}
		l.warnReadable(server.TokenFile, "")
		if slices.ContainsFunc(slices.Collect(maps.Keys(server.Headers)), func(h string) bool { return strings.EqualFold(h, "Authorization") }) {
			d.at(key+".tokenFile", "headers contains Authorization too; remove one")
			continue
		}
		headers := map[string]string{"Authorization": "Bearer " + token}
		maps.Copy(headers, server.Headers)
		server.Headers = headers
		l.MCPServers[name] = server
	}
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	secret := strings.TrimSpace(string(data))
	switch {
	case len(data) > maxSecret:
		return "", fmt.Errorf("%s has more than the %d bytes allowed for a secret", path, maxSecret)
	case secret == "":
		return "", fmt.Errorf("%s is empty", path)
	case strings.ContainsAny(secret, "\r\n"):
		return "", fmt.Errorf("%s has more than one line", path)
	}
	return secret, nil
}

// warnReadable warns if another user may read a file with a secret. It does nothing on Windows,
// where files inherit the permissions of the user's profile.
func (l *Loaded) warnReadable(path, key string) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o077 == 0 {
		return
	}
	warning := fmt.Sprintf("%s contains %s and other users may read it (mode %04o); run: chmod 600 %s", path, cmp.Or(key, "a secret"), info.Mode().Perm(), path)
	if !slices.Contains(l.Warnings, warning) {
		l.Warnings = append(l.Warnings, warning)
	}
}

// Origin returns the origin of the value of a dotted key.
func (l *Loaded) Origin(key string) Origin {
	if o, ok := l.origins[key]; ok {
		return o
	}
	return Origin{Kind: FromDefault}
}

// at reports a problem with a decoded value, at its position.
func (d *decoder) at(key, message string) {
	p := &Problem{Key: key, Message: message}
	switch o := d.origins[key]; o.Kind {
	case FromFile:
		p.File, p.Line, p.Column = o.Name, o.Line, o.Column
	case FromEnvironment, FromFlag:
		p.Source = o.Name
	default: // a default, or a missing key: the position is that of its section
		o := d.section(key)
		p.File, p.Line, p.Column = o.Name, o.Line, o.Column
	}
	d.problems = append(d.problems, p)
}

// section returns the origin of the innermost section around a key in the file, the zero value if there is none.
func (d *decoder) section(key string) Origin {
	for i := strings.LastIndexByte(key, '.'); i > 0; i = strings.LastIndexByte(key[:i], '.') {
		if o := d.origins[key[:i]]; o.Kind == FromFile {
			return o
		}
	}
	return Origin{}
}
