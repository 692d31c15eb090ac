//go:build unix

package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/testbed"
)

// block is a block of commands in a page of the documentation.
type block struct {
	line    int
	note    string // the HTML comment before it
	console bool   // with prompts and output
	text    string
}

var blocks = regexp.MustCompile("(?m)^[ \t]*(?:<!-- (.*) -->\n+[ \t]*)?```(sh|console)\n((?:.*\n)*?)[ \t]*```$")

func blocksOf(page string) (all []block) {
	for _, m := range blocks.FindAllStringSubmatchIndex(page, -1) {
		b := block{line: 1 + strings.Count(page[:m[4]], "\n"), console: page[m[4]:m[5]] == "console", text: page[m[6]:m[7]]}
		if m[2] >= 0 {
			b.note = page[m[2]:m[3]]
		}
		all = append(all, b)
	}
	return all
}

// script returns the commands of a block as they are run here: with the port of the test's hub, the latest task for one whose id the
// reader has to fill in, and those that may fail allowed to.
func (b block) script(http string) string {
	mayFail, _ := strings.CutPrefix(b.note, "may fail: ")
	var script strings.Builder
	for line := range strings.Lines(b.text) {
		if b.console {
			command, ok := strings.CutPrefix(strings.TrimLeft(line, " "), "$ ")
			if !ok {
				continue
			}
			line = command
		}
		line = regexp.MustCompile(`\bTASK\b`).ReplaceAllString(strings.ReplaceAll(line, "127.0.0.1:8080", http), "latest")
		if mayFail != b.note && strings.HasPrefix(line, mayFail) {
			command, _, _ := strings.Cut(line, " #")
			line = strings.TrimSpace(command) + " || true\n"
		}
		script.WriteString(line)
	}
	return script.String()
}

// The commands of the README and of the guides work as they are written, page by page and in their order, in the directory
// ~/src/shop, with programs that stand for the agents. A block that cannot be run here has a comment that says why:
//
//	<!-- not run: REASON -->
//	<!-- may fail: BEGINNING OF A COMMAND -->
func TestTheCommandsOfTheGuidesWork(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl", "jq", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s", program)
		}
	}
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = slices.DeleteFunc(append(pages, "../../../README.md"), func(page string) bool { return filepath.Base(page) == "cli.md" }) // generated
	reader := newReader(t)
	ran := 0
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := blocksOf(string(page))
		if n := len(regexp.MustCompile("(?m)^\\s*```(sh|console|bash|shell)").FindAll(page, -1)); n != len(found) {
			t.Errorf("%s: %d blocks of commands, of which %d are read: begin each with ```sh or ```console", path, n, len(found))
		}
		for _, b := range found {
			if reason, ok := strings.CutPrefix(b.note, "not run: "); ok && reason != "" {
				continue
			}
			ran++
			if out, err := reader.run(t, b.script(reader.http)); err != nil {
				t.Errorf("%s:%d: %v\n%s\n%s", strings.TrimPrefix(path, "../../../"), b.line, err, b.text, out)
			}
		}
	}
	if ran < 10 {
		t.Errorf("only %d blocks were run", ran)
	}
	if out, err := reader.run(t, "parley stop"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// reader is somebody who tries what the documentation says.
type reader struct {
	home, http string
}

func newReader(t *testing.T) reader {
	t.Helper()
	s := newSetup(t) // for its directory
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := reader{home: filepath.Dir(s.socket), http: fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])}
	_, port, _ := strings.Cut(r.http, ":")
	var config strings.Builder
	fmt.Fprintf(&config, "version: 1\nhttp: {port: %s}\nsocket: {path: %s}\nagents:\n", port, s.socket)
	for _, id := range []string{"claude-code", "codex", "gemini", "vibe", "reviewer"} {
		fmt.Fprintf(&config, "  %s: {driver: exec, command: %q, args: [], parser: text, env: {set: {GOCOVERDIR: %q, GORACE: \"atexit_sleep_ms=0\", %s: words, %s: \"\"}}}\n", id, exe, s.dir, beAgent, beParley)
	}
	err = errors.Join(
		os.MkdirAll(r.home+"/.a2a-hub", 0o700), os.MkdirAll(r.home+"/src/shop", 0o755), os.Mkdir(r.home+"/bin", 0o755),
		os.WriteFile(r.home+"/.a2a-hub/config.yaml", []byte(config.String()), 0o600),
		os.WriteFile(r.home+"/bin/parley", fmt.Appendf(nil, "#!/bin/sh\n%s=parley exec '%s' \"$@\"\n", beParley, exe), 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.run(t, "parley stop") }) //nolint:errcheck // it is stopped already unless the test failed
	if out, err := r.run(t, "git init -q && echo shop > README.md && git add . && git -c user.name=a -c user.email=a@example.com commit -qm shop && echo more >> README.md && parley trust . && parley start"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

// run runs commands in ~/src/shop.
func (r reader) run(t *testing.T, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-e", "-o", "pipefail", "-c", script)
	cmd.Dir = r.home + "/src/shop"
	cmd.Env = []string{"HOME=" + r.home, "PATH=" + r.home + "/bin:" + os.Getenv("PATH"), "GOCOVERDIR=" + r.home, "GORACE=atexit_sleep_ms=0"}
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer // what is written to a pipe is not shown at a terminal
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
