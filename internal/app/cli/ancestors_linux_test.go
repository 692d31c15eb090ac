package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/mcp/delegation"
)

// printToken makes the test binary print the task token that it finds.
const printToken = "CLI_TEST_HEIR"

func init() {
	if os.Getenv(printToken) != "" {
		fmt.Print(cli.TaskToken(os.LookupEnv))
		os.Exit(0)
	}
}

// The task token is the process's own, or that of the nearest ancestor that has one: an agent may start its MCP
// servers without its environment.
func TestTheTaskTokenIsInheritedFromAncestors(t *testing.T) {
	const name = delegation.TokenEnv
	child := "env -i " + printToken + "=1 "
	for what, c := range map[string]struct{ script, want string }{
		"of the agent":            {child + os.Args[0], "of the agent"},
		"through another process": {"env -i sh -c '" + child + os.Args[0] + "; true'; true", "of the agent"},
		"its own":                 {"env -i " + printToken + "=1 " + name + "=own " + os.Args[0], "own"},
		"the nearest":             {"env -i " + name + "=nearer sh -c '" + child + os.Args[0] + "; true'; true", "nearer"},
		"its own is empty":        {"env -i " + printToken + "=1 " + name + "= " + os.Args[0], ""},
	} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script+"; true")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), name + "=of the agent"}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || strings.TrimSpace(string(out)) != c.want {
				t.Errorf("found %q, want %q; %v %s", out, c.want, err, &stderr)
			}
		})
	}
}
