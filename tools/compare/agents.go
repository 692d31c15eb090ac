package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/stubmodel"
)

// hello is what the agents are asked, and answered is a part of the stub model's answer.
const (
	hello    = "hello"
	answered = "Hello from the stub model"
)

// vendor is a vendor's CLI.
type vendor struct {
	agent, name string
	first, next []string // commands: a conversation's first message, and another one
}

var vendors = []vendor{
	{"claude-code", "claude -p", []string{"claude", "-p", hello}, []string{"claude", "-p", "--continue", hello}},
	{"codex", "codex exec", []string{"codex", "exec", "--skip-git-repo-check", hello}, []string{"codex", "exec", "resume", "--skip-git-repo-check", "--last", hello}},
	{"gemini", "gemini -p", []string{"gemini", "-m", stubmodel.GeminiModel, "--approval-mode=yolo", "-p", hello},
		[]string{"gemini", "-m", stubmodel.GeminiModel, "--approval-mode=yolo", "--resume", "latest", "-p", hello}},
}

// agentRows are messages to the vendors' CLIs with the stub model: through Parley, and the CLI alone.
func (r *rig) agentRows() []row {
	var rows []row
	for _, v := range vendors {
		for _, m := range []struct {
			name           string
			again, toFirst bool
		}{{"first byte", false, true}, {"first message", false, false}, {"second message", true, false}} {
			x := row{name: v.agent + ", " + m.name, unit: "ms", less: true, most: 3,
				ours:  []contender{{"parley send", r.throughHub(v, m.again, m.toFirst)}},
				peers: []contender{{v.name, r.alone(v, m.again, m.toFirst)}}}
			if v.agent == "gemini" {
				x.peers = append(x.peers, contender{"gemini-cli-a2a-server", r.throughGeminiServer(m.again, m.toFirst)})
			}
			rows = append(rows, x)
		}
	}
	return rows
}

// startModel starts the stub model in this process.
func (r *rig) startModel() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: &stubmodel.Handler{}, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(ln) }() // ends with Close
	context.AfterFunc(r.ctx, func() { _ = server.Close() })
	return "http://" + ln.Addr().String(), nil
}

// settings returns the environment of a vendor's CLI with a home of its own, the CLIs of test/interop first in its PATH.
func (r *rig) settings(agent, kind string) (env map[string]string, home string, err error) {
	modules, err := r.interop()
	if err != nil {
		return nil, "", err
	}
	url, err := r.model()
	if err != nil {
		return nil, "", err
	}
	home = filepath.Join(r.dir, agent+kind)
	if err := os.MkdirAll(filepath.Join(home, "work"), 0o700); err != nil {
		return nil, "", err
	}
	env, err = stubmodel.Settings(agent, url, home)
	if err != nil {
		return nil, "", err
	}
	env["PATH"] = filepath.Join(modules, "node_modules", ".bin") + string(os.PathListSeparator) + os.Getenv("PATH")
	env["GEMINI_CLI_TRUST_WORKSPACE"], env["GEMINI_CLI_NO_RELAUNCH"] = "true", "true" // as Parley sets them
	return env, home, nil
}

func environment(set map[string]string) []string {
	env := os.Environ()
	for k, v := range set {
		env = append(env, k+"="+v)
	}
	return env
}

// startAgentsHub starts a hub with the vendors' agents.
func (r *rig) startAgentsHub() (*hub, error) {
	agents := map[string]any{"vibe": map[string]any{"disabled": true}}
	var path string
	for _, v := range vendors {
		env, _, err := r.settings(v.agent, "-hub")
		if err != nil {
			return nil, err
		}
		path = env["PATH"]
		delete(env, "PATH")
		agent := map[string]any{"env": map[string]any{"set": env}}
		if v.agent == "gemini" {
			agent["model"] = stubmodel.GeminiModel
		}
		agents[v.agent] = agent
	}
	config, err := json.Marshal(map[string]any{"agents": agents}) // JSON is YAML
	if err != nil {
		return nil, err
	}
	return r.startHub("agents", string(config), "PATH="+path)
}

// throughHub returns a function that measures `parley send` to an agent.
func (r *rig) throughHub(v vendor, again, toFirst bool) func(context.Context, time.Duration) (float64, error) {
	ask := func(ctx context.Context) (float64, error) {
		h, err := r.cli()
		if err != nil {
			return 0, err
		}
		parley, err := r.parley()
		if err != nil {
			return 0, err
		}
		args := []string{parley, "send", v.agent, hello}
		if again {
			args = append(args, "--context", fmt.Sprintf("%s-%t", v.agent, toFirst))
		}
		if toFirst {
			args = append(args, "--stream")
		}
		took, err := timed(ctx, h.env, h.home, toFirst, args)
		if v.agent == "gemini" && !again {
			pause(ctx, spareTime)
		}
		return took, err
	}
	first := sync.OnceValue(func() error {
		_, err := ask(r.ctx)
		return err
	})
	return func(ctx context.Context, _ time.Duration) (float64, error) {
		if err := first(); err != nil {
			return 0, err
		}
		return ask(ctx)
	}
}

// spareTime is how long the hub has for gemini's spare, whose start would take the processors from whoever is measured next.
const spareTime = 4 * time.Second

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// alone returns a function that measures a vendor's CLI.
func (r *rig) alone(v vendor, again, toFirst bool) func(context.Context, time.Duration) (float64, error) {
	kind := fmt.Sprintf("-alone-%t-%t", again, toFirst)
	ask := func(ctx context.Context, command []string) (float64, error) {
		env, home, err := r.settings(v.agent, kind)
		if err != nil {
			return 0, err
		}
		command = slices.Clone(command)
		program, _, _ := strings.Cut(env["PATH"], string(os.PathListSeparator))
		command[0] = filepath.Join(program, command[0])
		return timed(ctx, environment(env), filepath.Join(home, "work"), toFirst, command)
	}
	first := sync.OnceValue(func() error {
		_, err := ask(r.ctx, v.first)
		return err
	})
	return func(ctx context.Context, _ time.Duration) (float64, error) {
		if !again {
			return ask(ctx, v.first)
		}
		if err := first(); err != nil {
			return 0, err
		}
		return ask(ctx, v.next)
	}
}

// timed runs a command and returns how long it took in ms, until its first output or its end.
func timed(ctx context.Context, env []string, dir string, toFirst bool, command []string) (float64, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env, cmd.Dir = env, dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	took, answer, err := readAnswer(out, began, toFirst)
	err = errors.Join(err, cmd.Wait())
	if err == nil && !strings.Contains(answer, answered) {
		err = errors.New("the answer is not the model's")
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s%s", filepath.Base(command[0]), err, answer, said.String())
	}
	return took.Seconds() * 1e3, nil
}

// readAnswer reads an answer to its end.
func readAnswer(out io.Reader, began time.Time, toFirst bool) (took time.Duration, answer string, err error) {
	in := bufio.NewReader(out)
	_, _ = in.Peek(1) // ReadAll reports the error
	took = time.Since(began)
	all, err := io.ReadAll(in)
	if !toFirst {
		took = time.Since(began)
	}
	return took, string(all), err
}

// startGeminiServer starts gemini-cli-a2a-server, and returns its URL.
func (r *rig) startGeminiServer() (string, error) {
	modules, err := r.peers()
	if err != nil {
		return "", err
	}
	node, err := r.node()
	if err != nil {
		return "", err
	}
	env, home, err := r.settings("gemini", "-server")
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	env["CODER_AGENT_PORT"], env["CODER_AGENT_WORKSPACE_PATH"], env["GEMINI_YOLO_MODE"] = fmt.Sprint(port), filepath.Join(home, "work"), "true"
	if _, err := r.run(environment(env), node, filepath.Join(modules, "node_modules", "@google", "gemini-cli-a2a-server", "dist", "a2a-server.mjs")); err != nil {
		return "", err
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	return url, r.await(url, func(ctx context.Context) error {
		_, _, err := askGeminiServer(ctx, url, "", false)
		return err
	})
}

const geminiRequest = `{"jsonrpc":"2.0","id":"1","method":"message/stream","params":{"message":{"kind":"message","messageId":"m-%d","role":"user","parts":[{"kind":"text","text":"hello"}]%s}}}`

// askGeminiServer sends a message, of a task if more says so, and returns the events of the answer and how long it took, until the
// first text or the end.
func askGeminiServer(ctx context.Context, url, more string, toFirst bool) (answer string, took time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(fmt.Sprintf(geminiRequest, ids.Add(1), more)))
	if err != nil {
		return "", 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	var events strings.Builder
	for in := bufio.NewReader(resp.Body); ; {
		line, err := in.ReadString('\n')
		events.WriteString(line)
		if toFirst && took == 0 && strings.Contains(line, `"text-content"`) {
			took = time.Since(began)
		}
		if err != nil {
			break // the check of the events says what is missing
		}
	}
	if !toFirst {
		took = time.Since(began)
	}
	if answer = events.String(); took == 0 || !strings.Contains(answer, `"final":true`) {
		err = fmt.Errorf("gemini-cli-a2a-server: %.500s", answer)
	}
	return answer, took, err
}

var geminiTask = regexp.MustCompile(`"taskId":"([^"]+)","contextId":"([^"]+)"`)

// throughGeminiServer returns a function that measures gemini-cli-a2a-server, which has loaded the CLI before.
func (r *rig) throughGeminiServer(again, toFirst bool) func(context.Context, time.Duration) (float64, error) {
	more := ""
	return func(ctx context.Context, _ time.Duration) (float64, error) {
		url, err := r.gemini()
		if err != nil {
			return 0, err
		}
		if again && more == "" {
			answer, _, err := askGeminiServer(ctx, url, "", false)
			if err != nil {
				return 0, err
			}
			task := geminiTask.FindStringSubmatch(answer)
			if task == nil {
				return 0, fmt.Errorf("gemini-cli-a2a-server names no task: %.500s", answer)
			}
			more = fmt.Sprintf(`,"taskId":%q,"contextId":%q`, task[1], task[2])
		}
		_, took, err := askGeminiServer(ctx, url, more, toFirst)
		return took.Seconds() * 1e3, err
	}
}
