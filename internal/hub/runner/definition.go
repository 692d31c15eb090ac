package runner

import "time"

// Definition is an agent as data. The zero value of every field but ID, Driver
// and Command means the documented default. Users write it in config.yaml under
// agents.<id>; the built-in agents are such definitions too ([Builtin]).
// [Definition.Complete] fills in the defaults and checks.
type Definition struct {
	// ID names the agent in every API: [a-z0-9][a-z0-9._-]{0,63}.
	ID string `yaml:"-" json:"id"`
	// Extends is the id of a built-in agent that this one is a kind of: what is
	// not set here is as there. It makes a second agent of the same program, with
	// another role or model, a matter of three lines.
	Extends string `yaml:"extends,omitempty" json:"extends,omitempty"`
	// Name and Description are what people read, in lists and on the card.
	Name        string `yaml:"name,omitempty" json:"name,omitempty"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	// Disabled takes a built-in agent out.
	Disabled bool `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	// Driver is the protocol: exec, claude-stdio, codex-appserver, acp or echo.
	Driver string `yaml:"driver,omitempty" json:"driver,omitempty"`
	// Command is the program, looked up in PATH. Never a shell line.
	Command string `yaml:"command,omitempty" json:"command,omitempty"`
	// Args are the arguments of every run.
	Args []string `yaml:"args,omitempty" json:"args,omitempty"`
	// Model is put into ModelArgs' {model}; empty leaves the agent's default.
	Model     string   `yaml:"model,omitempty" json:"model,omitempty"`
	ModelArgs []string `yaml:"modelArgs,omitempty" json:"modelArgs,omitempty"`
	// Prompt says how the prompt travels: stdin (default), or arg, which
	// replaces {prompt} in PromptArgs. A prompt never stands where the program
	// could take it for a flag.
	Prompt     string   `yaml:"prompt,omitempty" json:"prompt,omitempty"`
	PromptArgs []string `yaml:"promptArgs,omitempty" json:"promptArgs,omitempty"`
	// SystemPrompt is put before the first prompt of a session (a role).
	SystemPrompt string `yaml:"systemPrompt,omitempty" json:"systemPrompt,omitempty"`
	// Parser reads stdout of driver exec: text (default), claude-stream,
	// gemini-stream, codex-jsonl, vibe-stream or jsonl.
	Parser  string       `yaml:"parser,omitempty" json:"parser,omitempty"`
	JSONL   *JSONLFields `yaml:"jsonl,omitempty" json:"jsonl,omitempty"`
	Session SessionFlags `yaml:"session,omitempty" json:"session,omitzero"`
	Probe   ProbeSpec    `yaml:"probe,omitempty" json:"probe,omitzero"`
	Env     EnvSpec      `yaml:"env,omitempty" json:"env,omitzero"`
	WorkDir WorkDirSpec  `yaml:"workdir,omitempty" json:"workdir,omitzero"`
	Limits  Limits       `yaml:"limits,omitempty" json:"limits,omitzero"`
	Stop    StopSpec     `yaml:"stop,omitempty" json:"stop,omitzero"`
	// Permissions is the answer to permission requests: ask (default), allow or
	// deny. ask makes the task input-required.
	Permissions string `yaml:"permissions,omitempty" json:"permissions,omitempty"`
	// PermissionArgs are added to Args by the value of Permissions. They are for
	// driver exec: a program that is run once a turn cannot ask, so that ask means
	// what the program does by itself, mostly denying.
	PermissionArgs map[string][]string `yaml:"permissionArgs,omitempty" json:"permissionArgs,omitempty"`
	// Skills are shown in the agent's card.
	Skills []Skill `yaml:"skills,omitempty" json:"skills,omitempty"`
	// Tier is the agent's level among agents that exchange envelopes: 0
	// (orchestrator) to 3 (specialist). Unset, it is that of the planetary agent
	// of this id, else 3: the tier from which every answer may be given.
	Tier *int `yaml:"tier,omitempty" json:"tier,omitempty"`
	// Sandbox names the sandbox that the agent runs in: it may answer only those
	// in the same one, and those that node.crossSandbox lists.
	Sandbox string `yaml:"sandbox,omitempty" json:"sandbox,omitempty"`
	// Capabilities are what envelopes can be addressed to instead of the agent's
	// id. Unset, the skills are the capabilities.
	Capabilities []Capability `yaml:"capabilities,omitempty" json:"capabilities,omitempty"`
}

// Capability is one thing that an agent can be asked for by envelopes.
type Capability struct {
	// ID is what envelopes are addressed to, such as review.go.
	ID string `yaml:"id" json:"id"`
	// Name and Description are for people; unset, the name is the id.
	Name        string `yaml:"name,omitempty" json:"name,omitempty"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
}

// Skill is one thing that an agent is good at, for its card.
type Skill struct {
	ID          string   `yaml:"id" json:"id"`
	Name        string   `yaml:"name" json:"name"`
	Description string   `yaml:"description" json:"description"`
	Tags        []string `yaml:"tags,omitempty" json:"tags,omitempty"`
}

// JSONLFields tells the generic JSONL parser where things are: dotted paths
// into each line.
type JSONLFields struct {
	// Type is the path of the field that tells the events apart.
	Type    string `yaml:"type,omitempty" json:"type,omitempty"`
	Text    string `yaml:"text,omitempty" json:"text,omitempty"`
	Session string `yaml:"session,omitempty" json:"session,omitempty"`
	Error   string `yaml:"error,omitempty" json:"error,omitempty"`
	// TextTypes, DoneTypes and ErrorTypes are values of Type.
	TextTypes  []string `yaml:"textTypes,omitempty" json:"textTypes,omitempty"`
	DoneTypes  []string `yaml:"doneTypes,omitempty" json:"doneTypes,omitempty"`
	ErrorTypes []string `yaml:"errorTypes,omitempty" json:"errorTypes,omitempty"`
}

// SessionFlags says how a conversation is begun and continued by driver exec.
// {session} stands for the id.
type SessionFlags struct {
	// New are the arguments of a first turn; with {session} in them the hub
	// chooses a UUID, else the id comes from the agent's output.
	New []string `yaml:"new,omitempty" json:"new,omitempty"`
	// Resume are the arguments of a later turn; empty means that the agent has
	// no sessions. ResumeReplaces puts them in place of Args, not behind them.
	Resume         []string `yaml:"resume,omitempty" json:"resume,omitempty"`
	ResumeReplaces bool     `yaml:"resumeReplaces,omitempty" json:"resumeReplaces,omitempty"`
}

// ProbeSpec says how health is found out.
type ProbeSpec struct {
	// Version are the arguments that print a version (default --version).
	Version []string `yaml:"version,omitempty" json:"version,omitempty"`
	// MinVersion is the oldest version that is known to work, e.g. 2.1.0; an
	// older one is reported with the remedy Install.
	MinVersion string `yaml:"minVersion,omitempty" json:"minVersion,omitempty"`
	// Auth are arguments that exit with 0 when there are credentials; empty
	// where the agent has no such command.
	Auth []string `yaml:"auth,omitempty" json:"auth,omitempty"`
	// AuthEnv and AuthFiles are where credentials are found instead: one of the
	// variables set, or one of the files (~ is the home directory) there.
	AuthEnv   []string `yaml:"authEnv,omitempty" json:"authEnv,omitempty"`
	AuthFiles []string `yaml:"authFiles,omitempty" json:"authFiles,omitempty"`
	// Install and Login are the remedies shown to users.
	Install string `yaml:"install,omitempty" json:"install,omitempty"`
	Login   string `yaml:"login,omitempty" json:"login,omitempty"`
}

// EnvSpec says what an agent sees of the hub's environment: a small base (PATH,
// HOME, LANG, TERM and such), the names in Allow (a trailing * matches the
// rest), and Set.
type EnvSpec struct {
	Allow []string          `yaml:"allow,omitempty" json:"allow,omitempty"`
	Set   map[string]string `yaml:"set,omitempty" json:"-"`
}

// WorkDirSpec says where an agent works.
type WorkDirSpec struct {
	// Policy is context (default: an own directory a context below the data
	// directory), fixed (Path), or worktree (a git worktree of Path a context).
	Policy string `yaml:"policy,omitempty" json:"policy,omitempty"`
	Path   string `yaml:"path,omitempty" json:"path,omitempty"`
}

// Limits bound an agent. Zero means the default in the comment.
type Limits struct {
	Concurrency int           `yaml:"concurrency,omitempty" json:"concurrency,omitempty"` // turns at once: 4
	Queue       int           `yaml:"queue,omitempty" json:"queue,omitempty"`             // waiting turns: 32
	Run         time.Duration `yaml:"run,omitempty" json:"run,omitempty"`                 // one turn: 30 min
	Idle        time.Duration `yaml:"idle,omitempty" json:"idle,omitempty"`               // without output: 10 min
	SessionIdle time.Duration `yaml:"sessionIdle,omitempty" json:"sessionIdle,omitempty"` // keep an idle process: 5 min
	MaxPrompt   int           `yaml:"maxPrompt,omitempty" json:"maxPrompt,omitempty"`     // bytes: 1 MiB
	MaxLine     int           `yaml:"maxLine,omitempty" json:"maxLine,omitempty"`         // bytes of a line: 10 MiB
	MaxOutput   int           `yaml:"maxOutput,omitempty" json:"maxOutput,omitempty"`     // bytes of an answer: 8 MiB
	StderrTail  int           `yaml:"stderrTail,omitempty" json:"stderrTail,omitempty"`   // bytes kept: 16 KiB
}

// StopSpec says how an agent is ended: Signals one after another, Grace apart,
// then SIGKILL to the group and the sweep.
type StopSpec struct {
	Signals []string      `yaml:"signals,omitempty" json:"signals,omitempty"` // INT, TERM
	Grace   time.Duration `yaml:"grace,omitempty" json:"grace,omitempty"`     // 2 s
}
