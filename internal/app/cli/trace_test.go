//go:build unix

package cli_test

import (
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/hub"
)

type shownTrace struct {
	dialect.Task
	TaskID string      `json:"taskId"`
	Turns  int         `json:"turns"`
	Traces []hub.Trace `json:"traces"`
}

func TestTaskShowHasTheTrace(t *testing.T) {
	p := newHub(t)
	dir := repository(t)
	want(t, p.run(t, "trust", dir), 0, "")
	want(t, p.run(t, "send", "--dir", dir, "leaks", "look at it"), 0, "done")

	text := p.run(t, "task", "show", "latest", "--trace")
	for _, part := range []string{
		"agent    leaks\n", "works in ", "model    leaky-1\n", "usage    11 + 7 tokens · $0.2500\n", "turn 1 completed after ", "asked    look at it\n",
		"tool     Bash: curl -H", " (completed, ", "\n  output it is\n         [redacted]", "\ngit      ", "\n         +2 −0      new.txt\n",
	} {
		if !strings.Contains(text.stdout, part) {
			t.Errorf("%q is missing in\n%s", part, text.stdout)
		}
	}
	if text.code != 0 || text.stderr != "" {
		t.Errorf("exit %d, stderr %q", text.code, text.stderr)
	}

	shown := decode[shownTrace](t, p.run(t, "--format", "json", "task", "show", "latest", "--trace"))
	if shown.ID == "" || shown.TaskID != shown.ID || shown.Turns != 1 || len(shown.Traces) != 1 {
		t.Fatalf("%+v", shown)
	}
	got := shown.Traces[0]
	if got.State != "completed" || got.Prompt != "look at it" || got.Model != "leaky-1" || got.WorkDir.Path != dir || got.Usage.CostUSD != 0.25 ||
		got.StartedAt.IsZero() || got.EndedAt.Before(got.StartedAt) || got.Derived {
		t.Errorf("%+v", got)
	}
	if len(got.Tools) == 0 || got.Tools[0].Name != "Bash" || got.Tools[0].Status != "completed" || got.Tools[0].EndedAt.IsZero() {
		t.Errorf("%+v", got.Tools)
	}
	if g := got.Git; g == nil || len(g.Before) != 40 || g.After != g.Before || g.Added != 2 || len(g.Files) != 1 || !g.Files[0].New {
		t.Errorf("%+v", got.Git)
	}
	want(t, p.run(t, "task", "show", "--trace", "no-such-task"), 4, "")
}

// The trace of a task with several turns has each of them; so has one whose turns have no record.
func TestTheTraceOfSeveralTurns(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "send", "asks", "hi"))
	want(t, p.run(t, "task", "show", task.ID, "--trace"), 0, "question Allow Run `rm -rf build`? (not answered)\n")
	want(t, p.run(t, "send", "--task", task.ID, "no-once"), 0, "you said no-once")
	want(t, p.run(t, "task", "show", task.ID, "--trace"), 0, "question Allow Run `rm -rf build`? (denied by the user)\n")

	want(t, p.run(t, "send", "fails", "hi"), 5, "")
	want(t, p.run(t, "task", "show", "latest", "--trace"), 0, "the model is on strike")
	want(t, p.run(t, "send", "echo", "hi"), 0, "hi")
	want(t, p.run(t, "task", "show", "latest", "--trace"), 0, "there is no record of this turn")
}

// A secret that an agent has or meets is in no trace, event, log, metric or stored file, nor in what any command prints.
func TestNoSecretLeavesTheHub(t *testing.T) {
	p := newSetup(t)
	file := filepath.Join(p.dir, "config.yaml")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(config), "http: {enabled: false}", "http: {port: 0, token: "+hubToken+"}\nlogging: {level: debug}", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	dir := repository(t)
	outputs := map[string]string{}
	for _, args := range [][]string{
		{"trust", dir}, {"send", "--dir", dir, "leaks", "fail"}, {"task", "show", "latest", "--trace"}, {"agents", "--health"},
		{"--format", "json", "send", "--stream", "--dir", dir, "leaks", "hello"}, {"send", "--dir", dir, "leaks", "hello"},
		{"task", "show", "latest"}, {"task", "show", "latest", "--trace"}, {"--format", "json", "task", "show", "latest", "--trace"}, {"--format", "json", "tasks"},
		{"--format", "json", "events", "--since", "1h"}, {"logs"}, {"--format", "json", "agents"}, {"--format", "json", "status"}, {"config", "show"},
		{"--format", "json", "contexts"}, {"--format", "json", "totals"}, {"doctor"},
	} {
		o := p.run(t, args...)
		outputs[strings.Join(args, " ")] = o.stdout + o.stderr
	}
	if all := outputs["--format json send --stream --dir "+dir+" leaks hello"]; !strings.Contains(all, "[redacted]") || !strings.Contains(all, "curl") {
		t.Errorf("the agent's tool call is not in the stream: %s", all)
	}
	if failed := outputs["send --dir "+dir+" leaks fail"]; !strings.Contains(failed, "on standard error [redacted] [redacted]") {
		t.Errorf("the agent's error is %q", failed)
	}
	info, err := daemon.Read(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	task := decode[dialect.Task](t, p.run(t, "--format", "json", "task", "show", "latest"))
	for _, path := range []string{"/metrics", "/tasks/" + task.ID + "/trace", "/events?follow=false&since=2026-01-01T00:00:00Z", "/totals", "/.well-known/agents"} {
		outputs[path] = get(t, info.HTTP+path)
	}
	walk := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || path == file {
			return err
		}
		body, err := os.ReadFile(path)
		outputs[path] = string(body)
		return err
	}
	if err := filepath.WalkDir(p.dir, walk); err != nil {
		t.Fatal(err)
	}
	for where, text := range outputs {
		for _, secret := range append(leakedTexts, leakedValue, hubToken) {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s has %q: …%s…", where, secret, text[max(0, i-80):min(len(text), i+80)])
			}
		}
	}
}

// get returns what the hub answers to a GET with its token.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+hubToken)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v: %s", url, resp.Status, err, body)
	}
	return string(body)
}
