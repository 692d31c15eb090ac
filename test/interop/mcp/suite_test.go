//go:build interop

package mcp_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/parleyhub/parley/internal/api/conformance"
	"github.com/parleyhub/parley/test/interop/rig"
)

const suite = "@modelcontextprotocol/conformance"

// conform runs the official suite against a server and returns its report.
func conform(t *testing.T, args ...string) (report string, err error) {
	t.Helper()
	main := filepath.Join(rig.Modules(t, suite), filepath.FromSlash(suite), "dist", "index.js")
	return output(t, func(ctx context.Context) *exec.Cmd {
		cmd := rig.Node(ctx, t, append([]string{main, "server"}, args...)...)
		cmd.Dir = t.TempDir() // it may write results
		return cmd
	})
}

// required returns the scenarios that a revision requires of servers.
func required(t *testing.T, revision string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(rig.Modules(t, suite), filepath.FromSlash(suite), "requirements", revision+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Server []string `yaml:"server"`
	}
	if err := yaml.Unmarshal(raw, &set); err != nil || len(set.Server) < 30 {
		t.Fatalf("%d scenarios, %v", len(set.Server), err)
	}
	return set.Server
}

var scenarioResult = regexp.MustCompile(`(?m)^\S+ (\S+): (\d+) passed, (\d+) failed`)

// results returns the numbers of passed and failed checks of a report, by scenario.
func results(report string) map[string][2]string {
	all := map[string][2]string{}
	for _, m := range scenarioResult.FindAllStringSubmatch(report, -1) {
		all[m[1]] = [2]string{m[2], m[3]}
	}
	return all
}

// Runs the complete required sets of both eras against the suite's fixtures at one URL.
func TestRequiredScenariosOfTheOfficialSuite(t *testing.T) {
	fixtures, err := conformance.New(t.Context(), conformance.Options{DataDir: t.TempDir(), Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(fixtures.Handler())
	t.Cleanup(func() {
		if err := fixtures.Close(context.Background()); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			report, err := conform(t, "--url", server.URL+"/mcp", "--requirements", revision)
			if err != nil {
				t.Fatal(err)
			}
			got := results(report)
			for _, scenario := range required(t, revision) {
				if r := got[scenario]; r[0] == "" || r[0] == "0" || r[1] != "0" {
					t.Errorf("%s: %s passed, %s failed", scenario, r[0], r[1])
				}
			}
			if t.Failed() {
				t.Log(report)
			}
			t.Log(lastLines(report, 20))
		})
	}
}

// generic are the scenarios that do not need the suite's fixtures.
var generic = map[string][]string{
	"2025-06-18": {
		"server-initialize", "server-session-lifecycle", "ping", "logging-set-level", "tools-list", "resources-list", "prompts-list",
	},
	"2025-11-25": {
		"server-initialize", "server-session-lifecycle", "ping", "logging-set-level", "tools-list", "resources-list", "prompts-list",
		"server-sse-multiple-streams", "dns-rebinding-protection",
	},
	"2026-07-28": {
		"server-stateless", "tools-list", "resources-list", "prompts-list", "server-sse-multiple-streams", "dns-rebinding-protection",
		"http-header-validation", "caching", "sep-2164-resource-not-found", "input-required-result-unsupported-methods",
	},
}

// notTestable is in the messages of server-stateless for a server without its diagnostic
// tools, which 4 of its 28 checks need. The hub has no tools for tests; the fixtures above
// pass these four.
const notTestable = "Not testable: server does not list the diagnostic tool"

// Runs the scenarios that work with any server against a running hub.
func TestGenericScenariosOfTheOfficialSuite(t *testing.T) {
	url := startHub(t, programs.NewHome(t)) + "/mcp"
	for revision, scenarios := range generic {
		t.Run(revision, func(t *testing.T) {
			for _, scenario := range scenarios {
				passed, untested := 0, 0
				for _, c := range examine(t, url, scenario, revision) {
					switch {
					case c.Status == "SUCCESS":
						passed++
					case c.Status == "FAILURE" && strings.HasPrefix(c.ErrorMessage, notTestable):
						untested++
					case c.Status == "FAILURE":
						t.Errorf("%s: %s: %s: %s", scenario, c.ID, c.Description, c.ErrorMessage)
					}
				}
				t.Logf("%s: %d checks passed, %d lack a diagnostic tool", scenario, passed, untested)
				if passed == 0 || untested > 0 && scenario != "server-stateless" || untested > 4 {
					t.Errorf("%s made too few checks", scenario)
				}
			}
		})
	}
}

type checked struct{ ID, Description, Status, ErrorMessage string }

// examine runs one scenario in one revision and returns its checks.
func examine(t *testing.T, url, scenario, revision string) []checked {
	t.Helper()
	dir := t.TempDir()
	// The suite also fails if something is not testable; the checks have the details.
	report, err := conform(t, "--url", url, "--scenario", scenario, "--spec-version", revision, "--output-dir", dir)
	files, globErr := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if globErr != nil || len(files) != 1 {
		t.Fatalf("%s: %d results, %v\n%s", scenario, len(files), err, report)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var all []checked
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
