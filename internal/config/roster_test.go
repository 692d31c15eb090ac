package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/config"
)

func loadText(t *testing.T, text string) (*config.Loaded, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Options{File: path, Home: t.TempDir(), LookupEnv: func(string) (string, bool) { return "", false }})
}

func TestRolesAreAgentsOfTheirTier(t *testing.T) { // Req 11.1
	l, err := loadText(t, `version: 1
agents:
  reviewer: {driver: echo, systemPrompt: "Be kind.", capabilities: [{id: review}]}
roster:
  sun: {agent: reviewer, prompt: "You lead."}
  mars: {agent: reviewer, prompt: "You test.", capabilities: [test]}
`)
	if err != nil {
		t.Fatal(err)
	}
	sun, mars := l.Agents["sun"], l.Agents["mars"]
	if *sun.Tier != 0 || sun.SystemPrompt != "Be kind.\n\nYou lead." || sun.Capabilities[0].ID != "review" || sun.ID != "sun" {
		t.Errorf("%+v", sun)
	}
	if *mars.Tier != 2 || len(mars.Capabilities) != 1 || mars.Capabilities[0].ID != "test" {
		t.Errorf("%+v", mars)
	}
	if r := l.Agents["reviewer"]; *r.Tier != 3 || r.SystemPrompt != "Be kind." || r.Capabilities[0].ID != "review" {
		t.Errorf("%+v", r)
	}
}

func TestInvalidRolesAreReportedWithTheirPosition(t *testing.T) {
	for text, part := range map[string]string{
		"roster: {moon: {agent: echo}}":                                 "not one of",
		"roster: {mars: {agent: nobody}}":                               `there is no agent "nobody"`,
		"roster: {mars: {prompt: x}}":                                   "agent is missing",
		"agents: {mars: {driver: echo}}\nroster: {mars: {agent: echo}}": "is set too",
		"roster: {mars: {agent: echo, role: x}}":                        "unknown key",
	} {
		if _, err := loadText(t, "version: 1\n"+text); err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), "config.yaml:") {
			t.Errorf("%s: %v, want %q", text, err, part)
		}
	}
}
