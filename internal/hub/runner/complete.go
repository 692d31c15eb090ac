package runner

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub/process"
)

// Placeholders in arguments.
const (
	promptPlace  = "{prompt}"
	sessionPlace = "{session}"
	modelPlace   = "{model}"
)

// Values of Definition's enumerations.
const (
	DriverExec           = "exec"
	DriverClaudeStdio    = "claude-stdio"
	DriverCodexAppServer = "codex-appserver"
	DriverACP            = "acp"
	DriverEcho           = "echo"
	// DriverPeer is the driver of another hub's agents. No configuration can set it.
	DriverPeer = "peer"
	// DriverSession is the driver of open sessions. No configuration can set it.
	DriverSession = "session"
	// DriverLibrary is the driver of connected Go programs. No configuration can set it.
	DriverLibrary = "library"
	// DriverQueue is the driver of queues of the agents' network. No configuration can set it.
	DriverQueue = "queue"
	// DriverSwarm is the driver of the agent that asks about swarms. No configuration can set it.
	DriverSwarm = "swarm"

	PromptStdin = "stdin"
	PromptArg   = "arg"

	PermissionsAsk   = "ask"
	PermissionsAllow = "allow"
	PermissionsDeny  = "deny"

	WorkDirContext  = "context"
	WorkDirFixed    = "fixed"
	WorkDirWorktree = "worktree"

	// The directories in a hub's data directory in which agents work: those of contexts, and worktrees.
	ContextsDir  = "contexts"
	WorktreesDir = "worktrees"
)

// OwnDirs returns the names of the directories in a hub's data directory below which agents may work.
func OwnDirs() []string { return []string{ContextsDir, WorktreesDir} }

// defaults replace zero values, see [Definition].
var defaults = Definition{
	Prompt:      PromptStdin,
	Parser:      ParserText,
	Permissions: PermissionsAsk,
	WorkDir:     WorkDirSpec{Policy: WorkDirContext},
	Probe:       ProbeSpec{Version: []string{"--version"}},
	Limits:      defaultLimits,
	Stop:        StopSpec{Signals: []string{"INT", "TERM"}, Grace: process.DefaultGrace},
}

// defaultLimits replace zero values, see [Limits].
var defaultLimits = Limits{
	Concurrency: 4,
	Queue:       32,
	Run:         30 * time.Minute,
	Idle:        10 * time.Minute,
	Retries:     40,
	Retrying:    3 * time.Minute,
	SessionIdle: 5 * time.Minute,
	MaxPrompt:   1 << 20,
	MaxLine:     10 << 20,
	MaxOutput:   8 << 20,
	StderrTail:  process.DefaultStderrTail,
}

var idPattern = text.Pattern(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// ValidID reports whether id is a valid agent id, see [Definition].
func ValidID(id string) bool { return idPattern().MatchString(id) }

// Complete returns the definition with defaults for its zero fields: from the built-in agent that it extends or is,
// then the documented ones. The error is an *Error with CodeConfig that names the field. Complete is idempotent.
func (d Definition) Complete() (Definition, error) {
	base, err := d.base()
	if err != nil {
		return Definition{}, err
	}
	d = d.over(base)
	d = d.over(preset(base.ID, d.Driver))
	d = over(d, defaults)
	d.Name = cmp.Or(d.Name, d.ID)
	d = d.withAddress()
	if err := d.check(); err != nil {
		return Definition{}, err
	}
	return d, nil
}

func (d Definition) base() (Definition, error) {
	builtin := Builtin()
	if d.Extends == "" {
		return builtin[d.ID], nil
	}
	base, ok := builtin[d.Extends]
	if !ok {
		return Definition{}, configError("extends", "%q is not a built-in agent; there are %s", d.Extends,
			strings.Join(slices.Sorted(maps.Keys(builtin)), ", "))
	}
	return base, nil
}

// over returns d with base's values for its zero fields. Maps are merged; d's entries
// win. The session's arguments and the working directory count as a whole.
func (d Definition) over(base Definition) Definition {
	out := over(d, base)
	out.ID = d.ID
	out.PermissionArgs = joinMaps(base.PermissionArgs, d.PermissionArgs)
	out.Env.Set = joinMaps(base.Env.Set, d.Env.Set)
	out.Env.Allow = slices.Clone(base.Env.Allow)
	for _, name := range d.Env.Allow {
		if !slices.Contains(out.Env.Allow, name) {
			out.Env.Allow = append(out.Env.Allow, name)
		}
	}
	out.Session = d.Session
	if len(d.Session.New)+len(d.Session.Resume) == 0 {
		out.Session = base.Session
	}
	if d.WorkDir != (WorkDirSpec{}) {
		out.WorkDir = d.WorkDir
	}
	return out
}

// over returns v with base's values for its zero fields, also in the structs within. An
// explicitly empty list counts.
func over[T any](v, base T) T {
	fill(reflect.ValueOf(&v).Elem(), reflect.ValueOf(base))
	return v
}

func fill(v, base reflect.Value) {
	if v.Kind() != reflect.Struct {
		if v.IsZero() {
			v.Set(base)
		}
		return
	}
	for i := range v.NumField() {
		fill(v.Field(i), base.Field(i))
	}
}

// withAddress fills in the tier and the capabilities.
func (d Definition) withAddress() Definition {
	if d.Tier == nil {
		tier := cmp.Or(agent.PlanetaryTier(d.ID), agent.L3).Level()
		d.Tier = &tier
	}
	if d.Capabilities == nil {
		for _, s := range d.Skills {
			d.Capabilities = append(d.Capabilities, Capability{ID: s.ID, Name: s.Name, Description: s.Description})
		}
	}
	return d
}

// WithDefaults returns the limits with the documented defaults for zero fields.
func (l Limits) WithDefaults() Limits { return over(l, defaultLimits) }

func joinMaps[V any](base, over map[string]V) map[string]V {
	if len(base) == 0 {
		return over
	}
	joined := maps.Clone(base)
	maps.Copy(joined, over)
	return joined
}

func configError(field, format string, args ...any) *Error {
	return &Error{Code: CodeConfig, Subject: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

// check rejects a definition that would fail or be unsafe later.
func (d Definition) check() error {
	for _, check := range []func(Definition) error{
		checkNames, checkArgs, checkPrompt, checkParser, checkSession, checkEnv, checkWorkDir, checkLimits, checkStop, checkAddress,
	} {
		if err := check(d); err != nil {
			return err
		}
	}
	return nil
}

func checkNames(d Definition) error {
	if !ValidID(d.ID) {
		return configError("id", "%q must be 1 to 64 of a-z, 0-9, '.', '_', '-', and begin with a letter or digit", d.ID)
	}
	if d.Driver == "" {
		return configError("driver", "is missing: exec, claude-stdio, codex-appserver, acp or echo, or extends with a built-in agent")
	}
	if d.Command == "" && d.Driver != DriverEcho {
		return configError("command", "is missing")
	}
	if filepath.Base(d.Command) != d.Command && !filepath.IsAbs(d.Command) && d.Command != "" {
		return configError("command", "%q must be a name to be found in PATH, or an absolute path", d.Command)
	}
	if err := oneOf("prompt", d.Prompt, PromptStdin, PromptArg); err != nil {
		return err
	}
	return oneOf("permissions", d.Permissions, PermissionsAsk, PermissionsAllow, PermissionsDeny)
}

// checkAddress checks that the agent's card will be valid.
func checkAddress(d Definition) error {
	if t := *d.Tier; t < 0 || t > 3 {
		return configError("tier", "%d is not one of 0, 1, 2, 3", t)
	}
	if d.Sandbox != "" {
		if err := agent.CheckID(d.Sandbox); err != nil {
			return configError("sandbox", "%v", err)
		}
	}
	if n := len(d.Capabilities); n > agent.MaxListLength {
		return configError("capabilities", "has %d entries; at most %d are allowed", n, agent.MaxListLength)
	}
	seen := map[string]bool{}
	for i, c := range d.Capabilities {
		field := fmt.Sprintf("capabilities[%d]", i)
		if err := agent.CheckID(c.ID); err != nil {
			return configError(field+".id", "%v", err)
		}
		if seen[c.ID] {
			return configError(field+".id", "repeats %q", c.ID)
		}
		seen[c.ID] = true
		if len(c.Name) > agent.MaxIDLength || len(c.Description) > agent.MaxTextLength {
			return configError(field, "has a name of more than %d bytes, or a description of more than %d", agent.MaxIDLength, agent.MaxTextLength)
		}
	}
	return nil
}

func oneOf(field, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return configError(field, "%q is not one of %s", value, strings.Join(allowed, ", "))
}

func checkArgs(d Definition) error {
	lists := map[string][]string{
		"command": {d.Command}, "args": d.Args, "modelArgs": d.ModelArgs, "promptArgs": d.PromptArgs,
		"session.new": d.Session.New, "session.resume": d.Session.Resume,
		"probe.version": d.Probe.Version, "probe.auth": d.Probe.Auth,
	}
	for value, args := range d.PermissionArgs {
		if err := oneOf("permissionArgs", value, PermissionsAsk, PermissionsAllow, PermissionsDeny); err != nil {
			return err
		}
		lists["permissionArgs."+value] = args
	}
	for _, field := range slices.Sorted(maps.Keys(lists)) {
		for i, arg := range lists[field] {
			if strings.ContainsRune(arg, 0) || len(arg) > process.MaxArg {
				return configError(field, "entry %d contains a NUL byte or is longer than %d bytes", i, process.MaxArg)
			}
		}
	}
	if strings.ContainsRune(d.Model, 0) || strings.HasPrefix(d.Model, "-") {
		return configError("model", "%q could be taken for a flag", d.Model)
	}
	return nil
}

// checkPrompt checks that a prompt cannot be read as a flag: it follows a "--", or other
// text in its argument (-p={prompt}).
func checkPrompt(d Definition) error {
	if d.Prompt != PromptArg {
		return nil
	}
	if d.Driver != DriverExec {
		return configError("prompt", "%s needs driver exec; driver %s passes the prompt itself", PromptArg, d.Driver)
	}
	places, ended := 0, false
	for _, arg := range d.PromptArgs {
		n := strings.Count(arg, promptPlace)
		places += n
		if n > 0 && strings.HasPrefix(arg, promptPlace) && !ended {
			return configError("promptArgs", "a prompt that begins with a dash would be read as a flag: put \"--\" before %s, or write -p=%s", promptPlace, promptPlace)
		}
		ended = ended || arg == "--"
	}
	if places != 1 {
		return configError("promptArgs", "needs %s once, has it %d times", promptPlace, places)
	}
	return nil
}

func checkParser(d Definition) error {
	if err := oneOf("parser", d.Parser, parserNames()...); err != nil {
		return err
	}
	if d.Parser != ParserJSONL {
		return nil
	}
	j := d.JSONL
	if j == nil || j.Text == "" {
		return configError("jsonl.text", "is missing: the path of the field with the answer's text")
	}
	if j.Type == "" && (len(j.TextTypes) > 0 || len(j.DoneTypes) > 0 || len(j.ErrorTypes) > 0) {
		return configError("jsonl.type", "is missing: the path of the field that textTypes, doneTypes and errorTypes match")
	}
	return nil
}

func checkSession(d Definition) error {
	s := d.Session
	if len(s.Resume) == 0 {
		if s.ResumeReplaces {
			return configError("session.resume", "is missing, but resumeReplaces is set")
		}
		return nil
	}
	if !hasPlace(s.Resume, sessionPlace) {
		return configError("session.resume", "needs an argument with %s", sessionPlace)
	}
	return nil
}

// hasPlace reports whether an argument holds the placeholder.
func hasPlace(args []string, place string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, place) })
}

func checkEnv(d Definition) error {
	for name, value := range d.Env.Set {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return configError("env.set", "%q is not a variable that can be set", name)
		}
		if name == process.MarkerEnv {
			return configError("env.set", "%s is the hub's own", name)
		}
	}
	for _, pattern := range d.Env.Allow {
		if rest := strings.TrimSuffix(pattern, "*"); rest == "" || strings.ContainsAny(rest, "*=") {
			return configError("env.allow", "%q is not a name, or the beginning of one with * behind it", pattern)
		}
	}
	return nil
}

func checkWorkDir(d Definition) error {
	w := d.WorkDir
	if err := oneOf("workdir.policy", w.Policy, WorkDirContext, WorkDirFixed, WorkDirWorktree); err != nil {
		return err
	}
	switch {
	case w.Policy == WorkDirContext && w.Path != "":
		return configError("workdir.path", "goes with policy fixed or worktree; a context's own directory has no path")
	case w.Policy != WorkDirContext && !filepath.IsAbs(w.Path):
		return configError("workdir.path", "policy %s needs an absolute path", w.Policy)
	}
	return nil
}

func checkLimits(d Definition) error {
	l := d.Limits
	for field, negative := range map[string]bool{
		"concurrency": l.Concurrency < 0, "queue": l.Queue < 0, "run": l.Run < 0, "idle": l.Idle < 0,
		"retries": l.Retries < 0, "retrying": l.Retrying < 0,
		"sessionIdle": l.SessionIdle < 0, "maxPrompt": l.MaxPrompt < 0, "maxLine": l.MaxLine < 0,
		"maxOutput": l.MaxOutput < 0, "stderrTail": l.StderrTail < 0,
	} {
		if negative {
			return configError("limits."+field, "must not be negative")
		}
	}
	return nil
}

func checkStop(d Definition) error {
	if d.Stop.Grace < 0 {
		return configError("stop.grace", "must not be negative")
	}
	for _, name := range d.Stop.Signals {
		if _, err := process.ParseSignal(name); err != nil {
			return configError("stop.signals", "%v", err)
		}
	}
	return nil
}
