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

// beHeir makes this program say which task token it finds.
const beHeir = "CLI_TEST_HEIR"

func init() {
	if os.Getenv(beHeir) != "" {
		fmt.Print(cli.TaskToken(os.LookupEnv))
		os.Exit(0)
	}
}

// An agent that keeps its environment from the MCP servers that it starts does not hide
// whose they are: the token is that of the nearest process above that has one, its own
// first.
func TestATaskTokenComesFromWhoStartedTheProcess(t *testing.T) {
	const name = delegation.TokenEnv
	heir := "env -i " + beHeir + "=1 "
	for what, c := range map[string]struct{ script, want string }{
		"the agent's":             {heir + os.Args[0], "of the agent"},
		"through another program": {"env -i sh -c '" + heir + os.Args[0] + "; true'; true", "of the agent"},
		"its own first":           {"env -i " + beHeir + "=1 " + name + "=own " + os.Args[0], "own"},
		"the nearest":             {"env -i " + name + "=nearer sh -c '" + heir + os.Args[0] + "; true'; true", "nearer"},
		"an empty one counts":     {"env -i " + beHeir + "=1 " + name + "= " + os.Args[0], ""},
	} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.script+"; true")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), name + "=of the agent"}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || strings.TrimSpace(string(out)) != c.want {
				t.Errorf("it found %q, want %q; %v %s", out, c.want, err, &stderr)
			}
		})
	}
}
