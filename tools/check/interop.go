package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/parleyhub/parley/internal/testbed/npm"
)

// interopDir contains the tests with real agents and clients; its package.json has their versions.
const interopDir = "test/interop"

// interop installs agents and clients of other vendors into a cache outside of the tree, and runs the tests with them.
func (c *check) interop(ctx context.Context) error {
	if c.quick {
		return nil
	}
	if _, err := exec.LookPath("npm"); err != nil {
		if c.ci {
			return errors.New("npm is not installed")
		}
		fmt.Println("left out: npm is not installed")
		return nil
	}
	if runtime.GOOS != "linux" {
		fmt.Println("left out: these tests look into /proc, which only Linux has")
		return nil
	}
	if err := c.system(ctx); err != nil {
		return err
	}
	manifest, err := os.ReadFile(filepath.Join(interopDir, "package.json"))
	if err != nil {
		return err
	}
	dir, err := npm.Install(ctx, "interop", manifest)
	if err != nil {
		return fmt.Errorf("install the agents: %w", err)
	}
	env := []string{
		"PATH=" + filepath.Join(dir, "node_modules", ".bin") + string(os.PathListSeparator) + os.Getenv("PATH"),
		"PARLEY_INTEROP_NODE_MODULES=" + filepath.Join(dir, "node_modules"),
		"PARLEY_INTEROP_REQUIRE=claude,gemini,codex,claude-agent-acp,codex-acp,tmux,chromium",
	}
	return c.goTest(ctx, env, "-count=1", "-timeout=20m", sideBySide(), "-tags=interop", "./"+interopDir+"/...", "./tools/release")
}
