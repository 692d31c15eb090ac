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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"

	"github.com/parleyhub/parley/internal/testbed/npm"
)

//go:embed a2a.mjs
var a2aScript []byte

//go:embed package.json
var manifest []byte

// startTimeout bounds the start of a program; the computer may be busy.
const startTimeout = 2 * time.Minute

// rig has the programs that are compared. Each is built and started when it is first used, and runs until stop, or until the
// row has ended.
type rig struct {
	ctx    context.Context
	cancel context.CancelFunc
	dir    string
	// programs is the directory with programs that are not built, "" for none.
	programs string

	running []*exec.Cmd
	ended   []func() // called after the row, the last first

	parley, hello, bareSend, tool, nats func() (string, error) // programs
	commit, fast, always, filled        func() (*hub, error)
	sdk, js                             func() (string, error) // URLs
	cli                                 func() (*hub, error)   // with the vendors' agents
	model, gemini                       func() (string, error) // URLs of the stub model and of gemini-cli-a2a-server
	interop, peers                      func() (string, error) // directories with node_modules
	node                                func() (string, error)
}

// newRig returns a rig with its files in dir.
func newRig(ctx context.Context, dir, programs string) *rig {
	r := &rig{dir: dir, programs: programs}
	r.ctx, r.cancel = context.WithCancel(ctx)
	program := func(name, pkg string) func() (string, error) {
		return sync.OnceValues(func() (string, error) { return r.build(name, pkg) })
	}
	r.parley, r.hello = sync.OnceValues(r.buildParley), program("hello", "./tools/compare/bare/hello")
	r.bareSend, r.tool = program("send", "./tools/compare/bare/send"), program("tool", "./tools/compare/bare/tool")
	r.nats = program("nats-server", "github.com/nats-io/nats-server/v2")
	hubOf := func(durability string) func() (*hub, error) {
		return sync.OnceValues(func() (*hub, error) { return r.startPlainHub(durability) })
	}
	r.commit, r.fast, r.always = hubOf("commit"), hubOf("fast"), hubOf("always")
	r.filled = sync.OnceValues(r.fill)
	r.sdk, r.js = sync.OnceValues(r.startSDK), sync.OnceValues(r.startJS)
	r.interop = sync.OnceValues(func() (string, error) { return r.modules("interop", nil) })
	r.peers = sync.OnceValues(func() (string, error) { return r.modules("compare", manifest) })
	r.cli, r.model, r.gemini = sync.OnceValues(r.startAgentsHub), sync.OnceValues(r.startModel), sync.OnceValues(r.startGeminiServer)
	r.node = sync.OnceValues(r.findNode)
	return r
}

// stop ends the programs.
func (r *rig) stop() {
	r.endRow()
	r.cancel()
	for _, cmd := range r.running {
		_ = cmd.Wait() // it was killed
	}
}

// afterRow has a function called at the end of the row.
func (r *rig) afterRow(f func()) { r.ended = append(r.ended, f) }

func (r *rig) endRow() {
	for _, f := range slices.Backward(r.ended) {
		f()
	}
	r.ended = nil
}

// buildParley builds the program as it is released.
func (r *rig) buildParley() (string, error) {
	return r.built("parley", "run", "./tools/release", "-program", r.dir)
}

// build builds another program without symbols, too.
func (r *rig) build(name, pkg string) (string, error) {
	return r.built(name, "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(r.dir, name), pkg)
}

// built returns the program that a go command builds into the rig's directory, unless there is one already in that of the programs.
func (r *rig) built(name string, command ...string) (string, error) {
	if given := filepath.Join(r.programs, name); r.programs != "" && exists(given) {
		return given, nil
	}
	build := exec.CommandContext(r.ctx, "go", command...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return filepath.Join(r.dir, name), nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// modules returns the directory with the node_modules of a package.json; nil is that of test/interop.
func (r *rig) modules(name string, manifest []byte) (string, error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return "", absent("npm is not installed")
	}
	if manifest == nil {
		if dir := os.Getenv("PARLEY_INTEROP_NODE_MODULES"); dir != "" {
			return filepath.Dir(dir), nil
		}
		var err error
		if manifest, err = os.ReadFile(filepath.Join("test", "interop", "package.json")); err != nil {
			return "", err
		}
	}
	dir, err := npm.Install(r.ctx, name, manifest)
	if err != nil {
		return "", absent(err.Error())
	}
	return dir, nil
}

// findNode returns the Node of test/interop.
func (r *rig) findNode() (string, error) {
	dir, err := r.interop()
	return filepath.Join(dir, "node_modules", ".bin", "node"), err
}

// script writes a script beside the modules of a directory and returns its file.
func (r *rig) script(modules, name string, text []byte) (string, error) {
	dir := filepath.Join(r.dir, name+".d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(modules, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		return "", err
	}
	file := filepath.Join(dir, name)
	return file, os.WriteFile(file, text, 0o600)
}

// run starts a program that ends with the rig.
func (r *rig) run(env []string, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(r.ctx, program, args...)
	cmd.Env, cmd.Dir = env, r.dir
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.running = append(r.running, cmd)
	return cmd, nil
}

// hub is a hub with a home of its own.
type hub struct {
	home, url string
	pid       int
	env       []string // of programs that use it
}

// echo is the URL of its echo agent.
func (h *hub) echo() string { return h.url + "/agents/echo/a2a" }

func (h *hub) socket() string { return filepath.Join(h.home, "hub.sock") }

// project makes the directory of a project with a configuration, which may be empty.
func (h *hub) project(name, config string) (string, error) {
	dir := filepath.Join(h.home, name)
	if err := os.MkdirAll(dir, 0o700); err != nil || config == "" {
		return dir, err
	}
	return dir, os.WriteFile(filepath.Join(dir, ".mcp-config.json"), []byte(config), 0o600)
}

// startPlainHub starts a hub that mounts tool. No vendor's program is in its PATH, so that it probes none.
func (r *rig) startPlainHub(durability string) (*hub, error) {
	tool, err := r.tool()
	if err != nil {
		return nil, err
	}
	return r.startHub(durability, fmt.Sprintf("bus: {durability: %s}\nmcpServers:\n  tool: {command: %q}\n", durability, tool), "PATH=/usr/bin:/bin")
}

// startHub starts a hub and returns when it answers.
func (r *rig) startHub(name, config string, env ...string) (*hub, error) {
	parley, err := r.parley()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	h := &hub{home: filepath.Join(r.dir, name), url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	if err := os.MkdirAll(h.home, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(h.home, "config.yaml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	h.env = slices.Concat(os.Environ(), env, []string{"HOME=" + h.home, "XDG_CONFIG_HOME=" + filepath.Join(h.home, ".config"), fmt.Sprint("PARLEY_HTTP_PORT=", port),
		"PARLEY_DATA_DIR=" + h.home, "PARLEY_SOCKET=" + h.socket()}) // as nettest expects them
	cmd, err := r.run(h.env, parley, "start", "--foreground")
	if err != nil {
		return nil, err
	}
	h.pid = cmd.Process.Pid
	return h, r.answers(h.echo())
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
	return r.await(url, func(ctx context.Context) error { return newClient(url).send(ctx) })
}

// await repeats a call until it succeeds.
func (r *rig) await(what string, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.ctx, startTimeout)
	defer cancel()
	for {
		err := call(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", what, err)
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

// startSDK starts the agent on the bare A2A SDK.
func (r *rig) startSDK() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return r.startServer(exec.CommandContext(r.ctx, self, "-serve-a2a"))
}

// startJS starts the agent on the JavaScript SDK.
func (r *rig) startJS() (string, error) {
	modules, err := r.interop()
	if err != nil {
		return "", err
	}
	node, err := r.node()
	if err != nil {
		return "", err
	}
	script, err := r.script(modules, "a2a.mjs", a2aScript)
	if err != nil {
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
