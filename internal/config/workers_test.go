package config_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/config"
)

func TestWorkersAreOneUnlessMoreAreConfigured(t *testing.T) {
	l, err := loadText(t, `version: 1
agents:
  reviewer: {driver: echo}
roster:
  sun: {agent: reviewer}
workers:
  - {agent: reviewer, capability: " Review"}
  - {agent: sun, capability: review, count: 3}
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Worker{{Agent: "reviewer", Capability: "review", Count: 1}, {Agent: "sun", Capability: "review", Count: 3}}
	if !slices.Equal(l.Workers, want) {
		t.Errorf("the workers are %+v", l.Workers)
	}
	if len(l.Secrets()) > 0 {
		t.Errorf("secrets: %q", l.Secrets())
	}
}

func TestInvalidWorkersAreReportedWithTheirPosition(t *testing.T) {
	worker := func(text string) string { return "workers: [" + text + "]" }
	many := strings.TrimSuffix(strings.Repeat("{agent: echo, capability: a},", 65), ",")
	for text, part := range map[string]string{
		worker("{agent: nobody, capability: go}"):                              `there is no agent "nobody"`,
		worker("{capability: go}"):                                             "agent is missing",
		worker("{agent: echo}"):                                                "the name of a queue",
		worker("{agent: echo, capability: deadletter}"):                        "the name of a queue",
		worker("{agent: echo, capability: a.b}"):                               "the name of a queue",
		worker("{agent: echo, capability: go, count: 0}"):                      "expected 1 to 64",
		worker("{agent: echo, capability: go, count: 65}"):                     "expected 1 to 64",
		worker("{agent: echo, capability: go}, {agent: echo, capability: GO}"): "works on this queue already",
		worker("{agent: echo, capability: go, queue: go}"):                     "unknown key",
		worker(many): "more than 64 workers",
		"agents: {echo: {disabled: true}}\n" + worker("{agent: echo, capability: go}"):             `there is no agent "echo"`,
		"bus: {url: 'nats://127.0.0.1:4222'}\n" + worker("{agent: echo, capability: go}"):          "its own bus",
		fmt.Sprintf("agents: {mine: {driver: none}}\n%s", worker("{agent: mine, capability: go}")): "agents.mine",
	} {
		if _, err := loadText(t, "version: 1\n"+text); err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "config.yaml:") {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
}
