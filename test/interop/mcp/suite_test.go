//go:build interop

package mcp_test

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/parleyhub/parley/internal/conformance"
	"github.com/parleyhub/parley/test/interop/npm"
)

const suite = "@modelcontextprotocol/conformance"

// conform runs the official suite against a server and returns its report.
func conform(t *testing.T, args ...string) (report string, err error) {
	t.Helper()
	main := filepath.Join(npm.Modules(t, suite), filepath.FromSlash(suite), "dist", "index.js")
	return output(t, func(ctx context.Context) *exec.Cmd {
		cmd := npm.Node(ctx, t, append([]string{main, "server"}, args...)...)
		cmd.Dir = t.TempDir() // in case it wants to keep results
		return cmd
	})
}

// required are the scenarios that a revision requires of servers.
func required(t *testing.T, revision string) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(npm.Modules(t, suite), filepath.FromSlash(suite), "requirements", revision+".yaml"))
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

// results are the scenarios of a report with what they passed and failed.
func results(report string) map[string][2]string {
	all := map[string][2]string{}
	for _, m := range scenarioResult.FindAllStringSubmatch(report, -1) {
		all[m[1]] = [2]string{m[2], m[3]}
	}
	return all
}

// The full required sets of both eras, against the suite's fixtures at one URL.
func TestRequiredSetsOfTheOfficialSuite(t *testing.T) {
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

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
