package runner

import "time"

// Definition describes an agent as data. The zero value of every field except ID, Driver and Command means the
// documented default. Users write definitions in config.yaml under agents.<id>; the built-in agents ([Builtin]) are
// definitions too. [Definition.Complete] fills in the defaults and checks them.
type Definition struct {
	// ID names the agent in every API: [a-z0-9][a-z0-9._-]{0,63}.
	ID string `yaml:"-" json:"id"`
	// Extends is the id of a built-in agent whose settings this agent inherits, such as
	// for a second agent of the same program with another role or model.
	Extends string `yaml:"extends,omitempty" json:"extends,omitempty"`
	// Name and Description are shown in lists and on the card.
	Name        string `yaml:"name,omitempty" json:"name,omitempty"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	// Disabled removes a built-in agent.
	Disabled bool `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	// Driver is the protocol: exec, claude-stdio, codex-appserver, acp or echo.
	Driver string `yaml:"driver,omitempty" json:"driver,omitempty"`
	// Command is the program, looked up in PATH. Never a shell line.
	Command string `yaml:"command,omitempty" json:"command,omitempty"`
	// Args are the arguments of every run.
	Args []string `yaml:"args,omitempty" json:"args,omitempty"`
	// Model replaces {model} in ModelArgs; empty means the agent's default.
	Model     string   `yaml:"model,omitempty" json:"model,omitempty"`
	ModelArgs []string `yaml:"modelArgs,omitempty" json:"modelArgs,omitempty"`
	// Prompt is how the program receives the prompt: stdin (default), or arg, which replaces {prompt} in PromptArgs.
	// A position where the program could read the prompt as a flag is rejected.
	Prompt     string   `yaml:"prompt,omitempty" json:"prompt,omitempty"`
	PromptArgs []string `yaml:"promptArgs,omitempty" json:"promptArgs,omitempty"`
	// SystemPrompt is the agent's role: text before the first prompt of a session.
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
	// Spare keeps a process ready for the next conversation while the agent is used, if its processes stay open between turns. The
	// default is true for gemini, whose start takes a second, and false for others.
	Spare *bool `yaml:"spare,omitempty" json:"spare,omitempty"`
	// Permissions is the answer to permission requests: ask (default), allow or
	// deny. ask makes the task input-required.
	Permissions string `yaml:"permissions,omitempty" json:"permissions,omitempty"`
	// PermissionArgs are added to Args, by the value of Permissions. They are for driver exec: a program that is run
	// once for each turn cannot ask, so that ask means the program's own default, mostly denying.
	PermissionArgs map[string][]string `yaml:"permissionArgs,omitempty" json:"permissionArgs,omitempty"`
	// Skills are shown in the agent's card.
	Skills []Skill `yaml:"skills,omitempty" json:"skills,omitempty"`
	// Tier is the agent's level among agents that exchange envelopes: 0 (orchestrator) to 3 (specialist). The
	// default is that of the planetary agent with this id, else 3, which may answer every agent.
	Tier *int `yaml:"tier,omitempty" json:"tier,omitempty"`
	// Sandbox is the name of the agent's sandbox: the agent may answer only agents in
	// the same one, and those in node.crossSandbox.
	Sandbox string `yaml:"sandbox,omitempty" json:"sandbox,omitempty"`
	// Capabilities are addresses of envelopes besides the agent's id. The default is the skills.
	Capabilities []Capability `yaml:"capabilities,omitempty" json:"capabilities,omitempty"`
}

// Capability is a service of an agent that envelopes can be addressed to.
type Capability struct {
	// ID is the address in envelopes, such as review.go.
	ID string `yaml:"id" json:"id"`
	// Name and Description are for users; the default name is the id.
	Name        string `yaml:"name,omitempty" json:"name,omitempty"`
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
}

// Skill is a skill on an agent's card.
type Skill struct {
	ID          string   `yaml:"id" json:"id"`
	Name        string   `yaml:"name" json:"name"`
	Description string   `yaml:"description" json:"description"`
	Tags        []string `yaml:"tags,omitempty" json:"tags,omitempty"`
}

// JSONLFields are the dotted paths at which the generic JSONL parser finds the fields of a line.
type JSONLFields struct {
	// Type is the path of the event's type.
	Type    string `yaml:"type,omitempty" json:"type,omitempty"`
	Text    string `yaml:"text,omitempty" json:"text,omitempty"`
	Session string `yaml:"session,omitempty" json:"session,omitempty"`
	Error   string `yaml:"error,omitempty" json:"error,omitempty"`
	// TextTypes, DoneTypes and ErrorTypes are values of Type.
	TextTypes  []string `yaml:"textTypes,omitempty" json:"textTypes,omitempty"`
	DoneTypes  []string `yaml:"doneTypes,omitempty" json:"doneTypes,omitempty"`
	ErrorTypes []string `yaml:"errorTypes,omitempty" json:"errorTypes,omitempty"`
}

// SessionFlags are the arguments with which driver exec begins and continues a
// conversation. {session} stands for the session id.
type SessionFlags struct {
	// New are the arguments of a first turn. If they contain {session}, the hub chooses a
	// UUID, else the id is read from the agent's output.
	New []string `yaml:"new,omitempty" json:"new,omitempty"`
	// Resume are the arguments of a later turn; empty means that the agent has no
	// sessions. With ResumeReplaces they replace Args instead of following them.
	Resume         []string `yaml:"resume,omitempty" json:"resume,omitempty"`
	ResumeReplaces bool     `yaml:"resumeReplaces,omitempty" json:"resumeReplaces,omitempty"`
}

// ProbeSpec describes how an agent's health is checked.
type ProbeSpec struct {
	// Version are the arguments that print a version (default --version).
	Version []string `yaml:"version,omitempty" json:"version,omitempty"`
	// MinVersion is the oldest supported version, e.g. 2.1.0; an older one is reported with the remedy Install.
	MinVersion string `yaml:"minVersion,omitempty" json:"minVersion,omitempty"`
	// Auth are arguments with which the program exits with 0 if it has credentials; empty if it has no such command.
	Auth []string `yaml:"auth,omitempty" json:"auth,omitempty"`
	// AuthEnv and AuthFiles are other places of credentials: one of the variables is set,
	// or one of the files (~ is the home directory) exists.
	AuthEnv   []string `yaml:"authEnv,omitempty" json:"authEnv,omitempty"`
	AuthFiles []string `yaml:"authFiles,omitempty" json:"authFiles,omitempty"`
	// Install and Login are the remedies shown to users.
	Install string `yaml:"install,omitempty" json:"install,omitempty"`
	Login   string `yaml:"login,omitempty" json:"login,omitempty"`
}

// EnvSpec is the environment of an agent: a small part of the hub's (PATH, HOME, LANG, TERM and the like), the hub's
// variables named in Allow (a trailing * matches any rest), and Set.
type EnvSpec struct {
	Allow []string          `yaml:"allow,omitempty" json:"allow,omitempty"`
	Set   map[string]string `yaml:"set,omitempty" json:"-"`
}

// WorkDirSpec is the working directory of an agent.
type WorkDirSpec struct {
	// Policy is context (default: a directory for each context, below the data
	// directory), fixed (Path), or worktree (a git worktree of Path for each context).
	Policy string `yaml:"policy,omitempty" json:"policy,omitempty"`
	Path   string `yaml:"path,omitempty" json:"path,omitempty"`
}

// Limits are the limits of an agent. Zero means the default in the comment.
type Limits struct {
	Concurrency int           `yaml:"concurrency,omitempty" json:"concurrency,omitempty"` // turns at once: 4
	Queue       int           `yaml:"queue,omitempty" json:"queue,omitempty"`             // waiting turns: 32
	Run         time.Duration `yaml:"run,omitempty" json:"run,omitempty"`                 // of one turn: 30 min
	Idle        time.Duration `yaml:"idle,omitempty" json:"idle,omitempty"`               // without output: 10 min
	Retries     int           `yaml:"retries,omitempty" json:"retries,omitempty"`         // refused requests in a row: 40
	Retrying    time.Duration `yaml:"retrying,omitempty" json:"retrying,omitempty"`       // only refused requests: 3 min
	SessionIdle time.Duration `yaml:"sessionIdle,omitempty" json:"sessionIdle,omitempty"` // of a process without a turn: 5 min
	MaxPrompt   int           `yaml:"maxPrompt,omitempty" json:"maxPrompt,omitempty"`     // bytes: 1 MiB
	MaxLine     int           `yaml:"maxLine,omitempty" json:"maxLine,omitempty"`         // bytes of a line: 10 MiB
	MaxOutput   int           `yaml:"maxOutput,omitempty" json:"maxOutput,omitempty"`     // bytes of an answer: 8 MiB
	StderrTail  int           `yaml:"stderrTail,omitempty" json:"stderrTail,omitempty"`   // bytes kept: 16 KiB
}

// StopSpec is how an agent is stopped: by Signals, each followed by a wait of Grace, then
// by SIGKILL to all its processes.
type StopSpec struct {
	Signals []string      `yaml:"signals,omitempty" json:"signals,omitempty"` // INT, TERM
	Grace   time.Duration `yaml:"grace,omitempty" json:"grace,omitempty"`     // 2 s
}
