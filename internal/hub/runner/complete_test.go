package runner_test

import (
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/hub/process"
	"github.com/parleyhub/parley/internal/hub/runner"
)

func TestEveryBuiltinCompletesWithEachOfItsDrivers(t *testing.T) {
	for id, drivers := range map[string][]string{
		"claude-code": {"claude-stdio", "exec"}, "gemini": {"acp", "exec"}, "codex": {"codex-appserver", "exec"},
		"vibe": {"acp", "exec"}, "echo": {"echo"},
	} {
		for _, driver := range drivers {
			def := runner.Builtin()[id]
			if def.ID != id {
				t.Fatalf("no %s", id)
			}
			if def.Driver != drivers[0] {
				t.Errorf("%s: driver %s", id, def.Driver)
			}
			def.Driver = driver
			got, err := def.Complete()
			if err != nil {
				t.Errorf("%s/%s: %v", id, driver, err)
				continue
			}
			if driver == "exec" && (got.Parser == "text" || len(got.Session.Resume) == 0) {
				t.Errorf("%s/%s: %+v", id, driver, got)
			}
			if driver != "echo" && (got.Probe.Install == "" || got.Probe.Login == "" || len(got.Skills) == 0) {
				t.Errorf("%s/%s has no remedies or skills", id, driver)
			}
			again, err := got.Complete()
			if err != nil || !reflect.DeepEqual(again, got) {
				t.Errorf("%s/%s is not complete: %v", id, driver, err)
			}
		}
	}
	if n := len(runner.Builtin()); n != 5 {
		t.Errorf("%d built-in agents", n)
	}
}

func TestDefaultsAreAsDocumented(t *testing.T) {
	got, err := runner.Definition{ID: "x", Driver: "exec", Command: "x"}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	specialist := 3
	want := runner.Definition{
		ID: "x", Name: "x", Tier: &specialist, Driver: "exec", Command: "x", Prompt: "stdin", Parser: "text", Permissions: "ask",
		WorkDir: runner.WorkDirSpec{Policy: "context"}, Probe: runner.ProbeSpec{Version: []string{"--version"}},
		Limits: runner.Limits{
			Concurrency: 4, Queue: 32, Run: 30 * time.Minute, Idle: 10 * time.Minute, Retries: 40, Retrying: 3 * time.Minute, SessionIdle: 5 * time.Minute,
			MaxPrompt: 1 << 20, MaxLine: 10 << 20, MaxOutput: 8 << 20, StderrTail: 16 << 10,
		},
		Stop: runner.StopSpec{Signals: []string{"INT", "TERM"}, Grace: 2 * time.Second},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if p := got.StopPolicy(); len(p.Signals) != 2 || p.Grace != 2*time.Second {
		t.Errorf("stop policy %+v", p)
	}
}

func TestAnAgentThatExtendsABuiltinInheritsUnsetFields(t *testing.T) {
	got, err := runner.Definition{
		ID: "reviewer", Extends: "claude-code", SystemPrompt: "You review.", Model: "opus",
		Env: runner.EnvSpec{Allow: []string{"AWS_*"}, Set: map[string]string{"X": "1", "CLAUDE_CODE_MAX_RETRIES": "9"}},
	}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if got.Driver != "claude-stdio" || got.Command != "claude" || got.Name == "" || got.Probe.Login == "" {
		t.Errorf("%+v", got)
	}
	if !slices.Contains(got.Env.Allow, "AWS_*") || !slices.Contains(got.Env.Allow, "ANTHROPIC_*") {
		t.Errorf("env %v", got.Env.Allow)
	}
	if got.Env.Set["CLAUDE_CODE_MAX_RETRIES"] != "9" || got.Env.Set["X"] != "1" || got.Env.Set["DISABLE_AUTOUPDATER"] != "1" {
		t.Errorf("env %v", got.Env.Set)
	}
	if args := got.ModelArguments(); !slices.Equal(args, []string{"--model", "opus"}) {
		t.Errorf("model %q", args)
	}
	if runner.Builtin()["claude-code"].Env.Set["X"] != "" {
		t.Error("the built-in agent was changed")
	}
}

func TestInvalidDefinitionsAreRefusedWithTheFieldsName(t *testing.T) {
	for field, change := range map[string]func(*runner.Definition){
		"id":            func(d *runner.Definition) { d.ID = "Upper" },
		"driver":        func(d *runner.Definition) { d.Driver = "" },
		"command":       func(d *runner.Definition) { d.Command = "" },
		"command ":      func(d *runner.Definition) { d.Command = "a\x00b" },
		"command  ":     func(d *runner.Definition) { d.Command = "./agent" },
		"extends":       func(d *runner.Definition) { d.Extends = "nobody" },
		"args":          func(d *runner.Definition) { d.Args = []string{"a\x00"} },
		"model":         func(d *runner.Definition) { d.Model = "--yolo" },
		"prompt":        func(d *runner.Definition) { d.Prompt = "env" },
		"prompt ":       func(d *runner.Definition) { d.Driver, d.Prompt = "acp", "arg" },
		"promptArgs":    func(d *runner.Definition) { d.Prompt = "arg" },
		"promptArgs ":   func(d *runner.Definition) { d.Prompt, d.PromptArgs = "arg", []string{"-p", "{prompt}"} },
		"promptArgs  ":  func(d *runner.Definition) { d.Prompt, d.PromptArgs = "arg", []string{"{prompt}", "--"} },
		"promptArgs   ": func(d *runner.Definition) { d.Prompt, d.PromptArgs = "arg", []string{"--", "{prompt}", "x{prompt}"} },
		"parser":        func(d *runner.Definition) { d.Parser = "xml" },
		"jsonl.text":    func(d *runner.Definition) { d.Parser = "jsonl" },
		"jsonl.type": func(d *runner.Definition) {
			d.Parser = "jsonl"
			d.JSONL = &runner.JSONLFields{Text: "t", DoneTypes: []string{"x"}}
		},
		"session.resume":          func(d *runner.Definition) { d.Session.Resume = []string{"--continue"} },
		"session.resume ":         func(d *runner.Definition) { d.Session = runner.SessionFlags{New: []string{"x"}, ResumeReplaces: true} },
		"env.set":                 func(d *runner.Definition) { d.Env.Set = map[string]string{"A=B": "x"} },
		"env.set ":                func(d *runner.Definition) { d.Env.Set = map[string]string{"A": "\x00"} },
		"env.set  ":               func(d *runner.Definition) { d.Env.Set = map[string]string{process.MarkerEnv: "x"} },
		"env.allow":               func(d *runner.Definition) { d.Env.Allow = []string{"*"} },
		"env.allow ":              func(d *runner.Definition) { d.Env.Allow = []string{"*_KEY"} },
		"workdir.policy":          func(d *runner.Definition) { d.WorkDir.Policy = "anywhere" },
		"workdir.path":            func(d *runner.Definition) { d.WorkDir = runner.WorkDirSpec{Policy: "fixed", Path: "relative"} },
		"workdir.path ":           func(d *runner.Definition) { d.WorkDir = runner.WorkDirSpec{Policy: "context", Path: "/x"} },
		"limits.run":              func(d *runner.Definition) { d.Limits.Run = -1 },
		"limits.maxLine":          func(d *runner.Definition) { d.Limits.MaxLine = -1 },
		"stop.grace":              func(d *runner.Definition) { d.Stop.Grace = -1 },
		"stop.signals":            func(d *runner.Definition) { d.Stop.Signals = []string{"STOP"} },
		"permissions":             func(d *runner.Definition) { d.Permissions = "yolo" },
		"permissionArgs":          func(d *runner.Definition) { d.PermissionArgs = map[string][]string{"yolo": nil} },
		"permissionArgs.allow":    func(d *runner.Definition) { d.PermissionArgs = map[string][]string{"allow": {"\x00"}} },
		"driver (no such driver)": func(d *runner.Definition) { d.Driver = "telepathy" },
	} {
		t.Run(field, func(t *testing.T) {
			def := runner.Definition{ID: "x", Driver: "exec", Command: "x"}
			change(&def)
			_, err := runner.Open(def, runner.Options{})
			name, _, _ := strings.Cut(strings.TrimSpace(field), " ")
			checkError(t, err, runner.CodeConfig, name+": ")
		})
	}
	if _, err := runner.Open(runner.Builtin()["echo"], runner.Options{Owner: "a.b"}); err == nil {
		t.Error("an owner with a dot was accepted")
	}
}

func TestOtherDriversAreOpenedByName(t *testing.T) {
	var got runner.Definition
	drivers := map[string]runner.Driver{"mine": func(def runner.Definition, opts runner.Options) (runner.Agent, error) {
		got = def
		if len(opts.Environ) == 0 {
			t.Error("no environment")
		}
		return nil, nil
	}}
	if _, err := runner.Open(runner.Definition{ID: "x", Driver: "mine", Command: "x"}, runner.Options{Drivers: drivers}); err != nil {
		t.Fatal(err)
	}
	if got.Limits.Queue != 32 {
		t.Errorf("the driver received an incomplete definition: %+v", got)
	}
}

func TestAProgramSeesNoCredentialsOfOtherAgents(t *testing.T) {
	secrets := []string{
		"ANTHROPIC_API_KEY=a", "OPENAI_API_KEY=o", "GEMINI_API_KEY=g", "MISTRAL_API_KEY=m", "AWS_SECRET_ACCESS_KEY=w",
		"GITHUB_TOKEN=h", "NATS_PASSWORD=n", "PARLEY_HTTP_TOKEN=p", "SSH_AUTH_SOCK=s", "CLAUDECODE=1", "DATABASE_URL=d",
	}
	own := map[string]string{"claude-code": "ANTHROPIC_API_KEY", "codex": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY", "vibe": "MISTRAL_API_KEY"}
	for id, name := range own {
		def, err := runner.Builtin()[id].Complete()
		if err != nil {
			t.Fatal(err)
		}
		env := strings.Join(def.Environ(runner.Options{Environ: secrets}), "\n")
		for _, kv := range secrets {
			if has, want := strings.Contains(env, kv), strings.HasPrefix(kv, name); has != want {
				t.Errorf("%s sees %s: %v", id, kv, has)
			}
		}
	}
	if runtime.GOOS == "windows" {
		t.Log("names of variables know no case here")
	}
}
