package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"iter"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

//go:embed a2a.mjs
var a2aScript []byte

const helloSource = `package main

import "os"

func main() { os.Stdout.WriteString("hello\n") }
`

// startTimeout bounds the start of a program; the computer may be busy.
const startTimeout = 2 * time.Minute

// rig has the programs that are compared. They run until stop.
type rig struct {
	ctx           context.Context
	cancel        context.CancelFunc
	dir           string
	parley, hello string // programs
	hubs          map[string]string
	sdk, js       string // URLs; js is "" without its modules
	running       []*exec.Cmd
}

// start builds and starts the programs, with their files in dir.
func start(ctx context.Context, dir string) (r *rig, err error) {
	r = &rig{dir: dir, parley: filepath.Join(dir, "parley"), hello: filepath.Join(dir, "hello"), hubs: map[string]string{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			r.stop()
		}
	}()
	source := filepath.Join(dir, "hello.go")
	if err := os.WriteFile(source, []byte(helloSource), 0o600); err != nil {
		return nil, err
	}
	for program, of := range map[string]string{r.parley: "./cmd/parley", r.hello: source} {
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", program, of)
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as a release
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build %s: %w\n%s", of, err, out)
		}
	}
	for _, durability := range []string{"commit", "fast"} {
		if r.hubs[durability], err = r.startHub(durability); err != nil {
			return nil, err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if r.sdk, err = r.startServer(exec.CommandContext(r.ctx, self, "-serve-a2a")); err != nil {
		return nil, err
	}
	r.js, err = r.startJS()
	return r, err
}

// stop ends the programs.
func (r *rig) stop() {
	r.cancel()
	for _, cmd := range r.running {
		_ = cmd.Wait() // it was killed
	}
}

// startHub starts a hub with a home of its own, and returns the URL of its echo agent.
func (r *rig) startHub(durability string) (string, error) {
	home := filepath.Join(r.dir, durability)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(r.ctx, r.parley, "start", "--foreground", "--data-dir", filepath.Join(home, "data"))
	cmd.Env = append(os.Environ(), "HOME="+home, fmt.Sprint("PARLEY_HTTP_PORT=", port), "PARLEY_BUS_DURABILITY="+durability)
	if err := cmd.Start(); err != nil {
		return "", err
	}
	r.running = append(r.running, cmd)
	url := fmt.Sprintf("http://127.0.0.1:%d/agents/echo/a2a", port)
	return url, r.answers(url)
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return ln.Addr().(*net.TCPAddr).Port, ln.Close()
}

// answers blocks until an agent answers a message.
func (r *rig) answers(url string) error {
	ctx, cancel := context.WithTimeout(r.ctx, startTimeout)
	defer cancel()
	for {
		err := newClient(url).send(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", url, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startServer starts a program that prints its port, and returns its URL.
func (r *rig) startServer(cmd *exec.Cmd) (string, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	r.running = append(r.running, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended without its port: %w", cmd.Path, err)
	}
	url := "http://127.0.0.1:" + strings.TrimSpace(line) + "/"
	return url, r.answers(url)
}

// startJS starts the agent on the JavaScript SDK; it returns "" without its modules.
func (r *rig) startJS() (string, error) {
	modules := os.Getenv("PARLEY_INTEROP_NODE_MODULES")
	if modules == "" {
		modules = filepath.Join("test", "interop", "node_modules")
	}
	modules, err := filepath.Abs(modules)
	if err != nil {
		return "", err
	}
	node, err := exec.LookPath("node")
	if _, missing := os.Stat(filepath.Join(modules, "@a2a-js", "sdk")); err != nil || missing != nil {
		fmt.Fprintln(os.Stderr, "without Node or the modules of test/interop: @a2a-js/sdk is left out")
		return "", nil
	}
	if err := os.Symlink(modules, filepath.Join(r.dir, "node_modules")); err != nil {
		return "", err
	}
	script := filepath.Join(r.dir, "a2a.mjs")
	if err := os.WriteFile(script, a2aScript, 0o600); err != nil {
		return "", err
	}
	return r.startServer(exec.CommandContext(r.ctx, node, script))
}

// sdkEcho is an agent on the bare A2A SDK that answers with the message.
type sdkEcho struct{}

func (sdkEcho) Execute(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		if !yield(a2a.NewSubmittedTask(ec, ec.Message), nil) || !yield(a2a.NewStatusUpdateEvent(ec, a2a.TaskStateWorking, nil), nil) {
			return
		}
		yield(a2a.NewStatusUpdateEvent(ec, a2a.TaskStateCompleted, a2a.NewMessageForTask(a2a.MessageRoleAgent, ec, ec.Message.Parts...)), nil)
	}
}

func (sdkEcho) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// serveSDK serves sdkEcho, tasks in memory, and prints its port.
func serveSDK(ctx context.Context) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Handler: a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(sdkEcho{})), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return server.Serve(ln)
}
