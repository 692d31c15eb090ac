//go:build unix

package process_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/hub/process"
)

func start(t *testing.T, cmd process.Command) *process.Process {
	t.Helper()
	p, err := process.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// waitLine reads lines until want, and returns the lines before it.
func waitLine(t *testing.T, lines *process.Lines, want string) []string {
	t.Helper()
	var before []string
	for {
		l, err := lines.Next()
		if err != nil {
			t.Fatalf("waiting for %q: %v (had %q)", want, err, before)
		}
		if string(l) == want {
			return before
		}
		before = append(before, string(l))
	}
}

// alive reports whether process pid runs; zombies do not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if _, procfs := os.Stat("/proc/self/stat"); procfs == nil {
			return false
		}
		return syscall.Kill(pid, 0) == nil
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestStdinAndStdoutAreConnected(t *testing.T) {
	p := start(t, helperCommand("cat"))
	go func() {
		_, _ = io.WriteString(p.Stdin(), strings.Repeat("hello\n", 50_000))
		_ = p.Stdin().Close()
	}()
	if got := readAll(t, p.Stdout()); len(got) != 300_000 {
		t.Errorf("got %d bytes", len(got))
	}
	if e := p.Wait(); e.Code != 0 || e.Err != nil {
		t.Errorf("exit %+v", e)
	}
}

func TestAProgramThatDoesNotReadItsInputDoesNotBlockTheWriterForever(t *testing.T) {
	p := start(t, helperCommand("exit", "3"))
	_, err := p.Stdin().Write(make([]byte, 10<<20))
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write error %v", err)
	}
	if e := p.Wait(); e.Code != 3 {
		t.Errorf("exit %+v", e)
	}
}

func TestStopFreesABlockedWriter(t *testing.T) {
	p := start(t, helperCommand("hang"))
	done := make(chan error, 1)
	go func() {
		_, err := p.Stdin().Write(make([]byte, 10<<20))
		done <- err
	}()
	waitLine(t, process.NewLines(p.Stdout(), 100), "ready")
	p.Stop(context.Background(), process.StopPolicy{})
	if err := <-done; err == nil {
		t.Error("the write succeeded")
	}
}

func TestTheEnvironmentIsAnAllowList(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-ant-1")
	t.Setenv("MYAGENT_MODEL", "m")
	t.Setenv("LC_TIME", "C")
	cmd := helperCommand("env")
	cmd.Env = process.Environ(os.Environ(), []string{"MYAGENT_*", "GOCOVERDIR"},
		map[string]string{helperEnv: "env", "EXTRA": "1"})
	p := start(t, cmd)
	env := strings.Split(readAll(t, p.Stdout()), "\n")
	has := func(prefix string) bool {
		for _, kv := range env {
			if strings.HasPrefix(kv, prefix) {
				return true
			}
		}
		return false
	}
	for _, want := range []string{"PATH=", "LC_TIME=C", "MYAGENT_MODEL=m", "EXTRA=1", process.MarkerEnv + "=" + string(p.Marker())} {
		if !has(want) {
			t.Errorf("%s is missing in %q", want, env)
		}
	}
	if has("ANTHROPIC_API_KEY") {
		t.Error("the environment contains a variable that is not allowed")
	}
}

func TestArgumentsAreNeverAShellLine(t *testing.T) {
	args := []string{"$(touch x)", "; rm -rf .", "--flag", "a b", "", "*"}
	p := start(t, helperCommand("args", args...))
	if got, want := readAll(t, p.Stdout()), fmt.Sprintf("%q\n", args); got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestStartRefusesInvalidCommands(t *testing.T) {
	notExec := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notExec, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok := helperCommand("env").Path
	for name, tc := range map[string]struct {
		cmd  process.Command
		want error
	}{
		"no name":                  {process.Command{}, process.ErrNotFound},
		"unknown name":             {process.Command{Path: "no-such-program-here", Env: os.Environ()}, process.ErrNotFound},
		"unknown path":             {process.Command{Path: "/no/such/program"}, process.ErrNotFound},
		"relative path":            {process.Command{Path: "./sh", Dir: "/bin"}, process.ErrNotFound},
		"not executable":           {process.Command{Path: notExec}, process.ErrNotFound},
		"NUL in an argument":       {process.Command{Path: ok, Args: []string{"a\x00b"}}, process.ErrArgument},
		"NUL in the name":          {process.Command{Path: "a\x00b"}, process.ErrArgument},
		"argument too long":        {process.Command{Path: ok, Args: []string{strings.Repeat("a", process.MaxArg+1)}}, process.ErrArgument},
		"relative entry in PATH":   {process.Command{Path: "file", Env: []string{"PATH=."}}, process.ErrNotFound},
		"directory does not exist": {process.Command{Path: ok, Dir: "/no/such/dir"}, process.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := process.Start(tc.cmd)
			if err == nil {
				_ = p.Close()
			}
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v want %v", err, tc.want)
			}
		})
	}
}

func TestTheLongestAllowedArgumentPasses(t *testing.T) {
	p := start(t, helperCommand("args", strings.Repeat("a", process.MaxArg)))
	if got := readAll(t, p.Stdout()); len(got) != process.MaxArg+len("[\"\"]\n") {
		t.Errorf("got %d bytes", len(got))
	}
}

func TestStderrIsDrainedBoundedAndRedacted(t *testing.T) {
	cmd := helperCommand("flood", "20000") // 20 MB on each stream
	cmd.StderrTail = 1 << 10
	p := start(t, cmd)
	out := readAll(t, p.Stdout())
	p.Wait()
	if !strings.HasSuffix(out, "end\n") {
		t.Error("standard output is incomplete")
	}
	if n := len(p.Stderr()); n == 0 || n > 1<<10 {
		t.Errorf("the tail has %d bytes", n)
	}

	cmd = helperCommand("stderr", "key", "hunter2hunter2", "sk-ant-abcdefgh12345")
	cmd.Env = append(cmd.Env, "MY_SECRET=hunter2hunter2")
	p = start(t, cmd)
	p.Wait()
	if got, want := p.Stderr(), "key [redacted] [redacted]\n"; got != want {
		t.Errorf("got %q want %q", got, want)
	}
}

func TestLinesOfStderrAreReportedAndOmitted(t *testing.T) {
	long := strings.Repeat("x", 10_000)
	cmd := helperCommand("stderr", "one\r\nsecret two\n\n"+long+"\nend")
	var lines []string
	cmd.Stderr = func(line string) bool {
		lines = append(lines, line)
		return !strings.HasPrefix(line, "secret")
	}
	p := start(t, cmd)
	p.Wait()
	if want := []string{"one", "secret two", "", long[:8<<10], long[8<<10:], "end"}; !slices.Equal(lines, want) {
		t.Errorf("got %q", lines)
	}
	if got, want := p.Stderr(), "one\r\n\n"+long+"\nend\n"; got != want {
		t.Errorf("the tail is %q", got)
	}
}

func TestALineLongerThanTheLimitIsSkipped(t *testing.T) {
	p := start(t, helperCommand("bigline", "100")) // 100 MiB
	lines := process.NewLines(p.Stdout(), 1<<20)
	if _, err := lines.Next(); !errors.Is(err, process.ErrLineTooLong) {
		t.Errorf("got %v", err)
	}
	if l, err := lines.Next(); string(l) != "half a line" || err != nil {
		t.Errorf("got %q, %v", l, err)
	}
	if _, err := lines.Next(); err != io.EOF {
		t.Errorf("got %v", err)
	}
}

func TestExitReportsCodeAndSignal(t *testing.T) {
	if e := start(t, helperCommand("exit", "55")).Wait(); e.Code != 55 || e.Signal != "" {
		t.Errorf("exit %+v", e)
	}
	if e := start(t, helperCommand("killself")).Wait(); e.Code != -1 || e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
}

func TestOutputDuringTheGracePeriodIsRead(t *testing.T) {
	p := start(t, helperCommand("polite"))
	lines := process.NewLines(p.Stdout(), 100)
	waitLine(t, lines, "ready")
	e := p.Stop(context.Background(), process.StopPolicy{Signals: []os.Signal{syscall.SIGINT}, Grace: time.Hour})
	if e.Code != 0 || e.Signal != "" {
		t.Errorf("exit %+v", e)
	}
	waitLine(t, lines, "last words")
}

func TestStopSendsEachSignalThenKills(t *testing.T) {
	p := start(t, helperCommand("stubborn"))
	lines := process.NewLines(p.Stdout(), 100)
	waitLine(t, lines, "ready")
	e := p.Stop(context.Background(), process.StopPolicy{
		Signals: []os.Signal{syscall.SIGINT, syscall.SIGTERM}, Grace: 2 * time.Second, // enough to print the signals on a busy machine
	})
	if e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
	waitLine(t, lines, "interrupt")
	waitLine(t, lines, "terminated")
}

func TestTheEndOfTheContextCutsTheGraceShort(t *testing.T) {
	p := start(t, helperCommand("stubborn"))
	waitLine(t, process.NewLines(p.Stdout(), 100), "ready")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := p.Stop(ctx, process.StopPolicy{Signals: []os.Signal{syscall.SIGINT}, Grace: time.Hour})
	if e.Signal != "SIGKILL" {
		t.Errorf("exit %+v", e)
	}
}

func TestStopAndCloseAreIdempotentAndConcurrent(t *testing.T) {
	p := start(t, helperCommand("hang"))
	done := make(chan process.Exit)
	for range 8 {
		go func() {
			e := p.Stop(context.Background(), process.StopPolicy{})
			_ = p.Close()
			done <- e
		}()
	}
	for range 8 {
		if e := <-done; e.Signal != "SIGKILL" {
			t.Errorf("exit %+v", e)
		}
	}
}

// pids reads the process ids that the tree helper prints.
func pids(t *testing.T, lines *process.Lines) []int {
	t.Helper()
	var ids []int
	for _, l := range waitLine(t, lines, "ready") {
		id, err := strconv.Atoi(l)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func TestNoProcessIsLeftBehind(t *testing.T) {
	for name, end := range map[string]func(*process.Process) process.Exit{
		"stopped at once": func(p *process.Process) process.Exit {
			return p.Stop(context.Background(), process.StopPolicy{})
		},
		"stopped with grace": func(p *process.Process) process.Exit {
			return p.Stop(context.Background(), process.StopPolicy{Signals: []os.Signal{syscall.SIGINT}, Grace: time.Hour})
		},
		"killed from outside": func(p *process.Process) process.Exit {
			_ = syscall.Kill(p.PID(), syscall.SIGKILL)
			return p.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) { checkTree(t, "hang", end) })
	}
	t.Run("ended normally", func(t *testing.T) {
		checkTree(t, "end", func(p *process.Process) process.Exit { return p.Wait() })
	})
}

func checkTree(t *testing.T, mode string, end func(*process.Process) process.Exit) {
	p := start(t, helperCommand("tree", mode))
	lines := process.NewLines(p.Stdout(), 100)
	var ids []int
	for _, l := range waitLine(t, lines, "ready") {
		if id, err := strconv.Atoi(l); err == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) != 3 {
		t.Fatalf("the tree has %d processes", len(ids))
	}
	e := end(p)
	if e.Err != nil || e.Swept == 0 {
		t.Errorf("exit %+v", e)
	}
	for _, id := range append(ids, p.PID()) {
		if alive(id) {
			t.Errorf("process %d still runs", id)
		}
	}
	if _, err := lines.Next(); err != io.EOF {
		t.Errorf("standard output did not end: %v", err)
	}
}

// Such a process is found neither by its environment nor by its session or parent.
func TestAProcessThatHasClearedItsEnvironmentIsSwept(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a second marker")
	}
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip("needs the setsid command")
	}
	run := func(marker process.Marker, then string) (*process.Process, int) {
		p := start(t, process.Command{
			Path: "sh", Env: process.Environ(os.Environ(), nil, nil), Marker: marker,
			Args: []string{"-c", "read go; env -i setsid sleep 3600 >/dev/null 2>&1 </dev/null & echo $!; read go; " + then},
		})
		// The marker is set shortly after the start.
		_, _ = io.WriteString(p.Stdin(), "go\n")
		lines := process.NewLines(p.Stdout(), 100)
		line, err := lines.Next()
		if err != nil {
			t.Fatal(err)
		}
		id, err := strconv.Atoi(string(line))
		if err != nil {
			t.Fatal(err)
		}
		awaitSession(t, id)
		t.Cleanup(func() {
			if alive(id) { // after a failure of the test
				_ = syscall.Kill(id, syscall.SIGKILL)
			}
		})
		return p, id
	}
	p, id := run("", "exit 0")
	_, _ = io.WriteString(p.Stdin(), "go\n")
	if e := p.Wait(); e.Code != 0 || e.Swept != 1 || alive(id) {
		t.Errorf("exit %+v, alive %v", e, alive(id))
	}

	p, id = run(process.NewMarker("clearedowner"), "exec sleep 3600")
	n, err := process.SweepOwner("clearedowner")
	p.Wait() // sweeps concurrently, with a count of its own
	if n == 0 || err != nil || alive(id) {
		t.Errorf("swept %d, %v, alive %v", n, err, alive(id))
	}
}

// Such a process may delay the end of the output by WaitDelay at most.
func TestAnUnmarkedProcessThatHoldsThePipesDoesNotBlockTheReader(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS != "linux" {
		t.Skip("needs bash on Linux, whose ulimit -x lowers the limit")
	}
	p := start(t, process.Command{
		Path: "bash", Env: process.Environ(os.Environ(), nil, nil), WaitDelay: 2 * time.Second, // enough to read the pipe's content on a busy machine
		Args: []string{"-c", "ulimit -x 5; env -i setsid sleep 3600 & echo $!; read go; printf %65536d 1"},
	})
	lines := process.NewLines(p.Stdout(), 1<<20)
	line, err := lines.Next()
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.Atoi(string(line))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(id, syscall.SIGKILL) }()
	awaitSession(t, id)
	_, _ = io.WriteString(p.Stdin(), "go\n")
	if rest, err := lines.Next(); len(rest) != 65536 || err != nil {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
	if _, err := lines.Next(); err != io.EOF {
		t.Errorf("%v", err)
	}
	if e := p.Wait(); e.Code != 0 || !alive(id) {
		t.Errorf("exit %+v, the unmarked process is alive: %v", e, alive(id))
	}
}

// awaitSession waits until a process is a session leader and sleeps.
func awaitSession(t *testing.T, pid int) {
	t.Helper()
	for t.Context().Err() == nil {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if f := strings.Fields(string(b)); f[1] == "(sleep)" && f[5] == strconv.Itoa(pid) {
			return
		}
		runtime.Gosched()
	}
}

func TestSweepOrphansLeavesTheProcessAndItsChildren(t *testing.T) {
	p := start(t, helperCommand("tree", "hang"))
	ids := pids(t, process.NewLines(p.Stdout(), 100))
	n, err := p.SweepOrphans()
	if n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	for i, want := range []bool{true, true, false} {
		if alive(ids[i]) != want {
			t.Errorf("process %d of the tree alive: %v", i, !want)
		}
	}
	if !alive(p.PID()) {
		t.Error("the process itself was ended")
	}
}

func TestSweepOwnerEndsProcessesOfAnEarlierRun(t *testing.T) {
	mine, other := helperCommand("tree", "hang"), helperCommand("hang")
	mine.Marker = process.NewMarker("testowner")
	other.Marker = process.NewMarker("testowner2")
	p, q := start(t, mine), start(t, other)
	ids := pids(t, process.NewLines(p.Stdout(), 100))
	waitLine(t, process.NewLines(q.Stdout(), 100), "ready")
	n, err := process.SweepOwner("testowner")
	p.Wait() // sweeps concurrently, with a count of its own
	if n == 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	for _, id := range append(ids, p.PID()) {
		if alive(id) {
			t.Errorf("process %d still runs", id)
		}
	}
	if !alive(q.PID()) {
		t.Error("a process of another owner was ended")
	}
	if n, err := process.SweepOwner(""); n != 0 || err != nil {
		t.Errorf("empty owner: swept %d, %v", n, err)
	}
}

func TestMarkersNest(t *testing.T) {
	t.Setenv(process.MarkerEnv, "outer.1")
	p := start(t, helperCommand("env"))
	want := process.MarkerEnv + "=outer.1:" + string(p.Marker())
	if out := readAll(t, p.Stdout()); !strings.Contains(out, want) {
		t.Errorf("no %s in %s", want, out)
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	run := func() {
		p, err := process.Start(helperCommand("exit", "0"))
		if err != nil {
			t.Fatal(err)
		}
		p.Wait()
		_ = p.Close()
		if _, err := process.Start(process.Command{Path: "/no/such/program"}); err == nil {
			t.Fatal("started")
		}
	}
	run() // the first run opens the runtime's poller
	before := count()
	for range 20 {
		run()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func BenchmarkStartToSwept(b *testing.B) {
	cmd := process.Command{Path: "true", Env: process.Environ(os.Environ(), nil, nil)}
	for b.Loop() {
		p, err := process.Start(cmd)
		if err != nil {
			b.Fatal(err)
		}
		p.Wait()
		_ = p.Close()
	}
}

func TestSignalsByName(t *testing.T) {
	for name, want := range map[string]os.Signal{"INT": syscall.SIGINT, "sigterm": syscall.SIGTERM, "KILL": syscall.SIGKILL} {
		if got, err := process.ParseSignal(name); got != want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, name := range []string{"", "STOP", "9", "SIGSIGINT"} {
		if got, err := process.ParseSignal(name); err == nil {
			t.Errorf("%q is %v", name, got)
		}
	}
}
