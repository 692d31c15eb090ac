package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/guard"
	"github.com/parleyhub/parley/internal/app/install"
	"github.com/parleyhub/parley/internal/app/service"
	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/config"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// The exit codes, which docs/json.md specifies.
const (
	exitOK            = 0
	exitFailure       = 1
	exitUsage         = 2
	exitNotRunning    = 3
	exitNotFound      = 4
	exitTaskFailed    = 5
	exitInputRequired = 6
	exitAuthRequired  = 7
	exitTimeout       = 8
	exitUnavailable   = 9
	exitInterrupted   = 130
)

// kindOutcomeUnknown is the code of a change that may or may not have been made.
const kindOutcomeUnknown = "outcome-unknown"

// codeDocumentNotFound is the hub's code for a document that does not exist.
const codeDocumentNotFound = "DOCUMENT_NOT_FOUND"

// failure is an error in the form that the user gets.
type failure struct {
	Exit    int    `json:"exitCode"`
	Kind    string `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	quiet   bool   // not printed: the output already says it, as for a failed task
}

func (f *failure) Error() string { return f.Message }

// errInterrupted is the cause of a context that a signal ended.
var errInterrupted = errors.New("interrupted")

func usage(format string, args ...any) error {
	return &failure{Exit: exitUsage, Kind: "usage", Message: fmt.Sprintf(format, args...)}
}

// unreadable is the failure for a file that the user has named. The system's own text is not for people.
func unreadable(path string, err error, remedy string) error {
	f := &failure{Exit: exitUsage, Kind: "usage", Message: err.Error(), Remedy: remedy}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Message = fmt.Sprintf("there is no file %s", path)
	case errors.Is(err, fs.ErrPermission):
		f.Message = fmt.Sprintf("you may not read the file %s", path)
	case errors.Is(err, syscall.EISDIR):
		f.Message = fmt.Sprintf("%s is a directory", path)
	}
	return f
}

// explain converts any error to a failure.
func (a *app) explain(err error) *failure {
	var f *failure
	var rpc *jsonrpc.Error
	var invalid *config.Invalid
	var unread *config.Error
	var invalidMCP *mcpconfig.Error
	var de *daemon.Error
	var se *service.Error
	var ie *install.Error
	var ge *guard.Error
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return &failure{Exit: exitInterrupted, Kind: "interrupted", Message: "interrupted"}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{Exit: exitTimeout, Kind: "timeout", Message: "the hub took too long to answer", Remedy: "see: " + a.self() + " status"}
	case errors.As(err, &unread) && unread.Code == config.CodeForbidden:
		return &failure{Exit: exitFailure, Kind: string(daemon.CodeDataDir), Message: unread.Message, Remedy: unread.Remedy}
	case errors.As(err, &unread):
		return &failure{Exit: exitUsage, Kind: "configuration", Message: unread.Message, Remedy: unread.Remedy}
	case errors.As(err, &de):
		return &failure{Exit: exitFailure, Kind: string(de.Code), Message: de.Message, Remedy: de.Remedy}
	case errors.As(err, &se):
		return &failure{Exit: exitFailure, Kind: "service-" + string(se.Code), Message: plain(se.Message), Remedy: se.Remedy}
	case errors.As(err, &ie):
		return &failure{Exit: exitFailure, Kind: "install-" + string(ie.Code), Message: plain(ie.Message), Remedy: plain(ie.Remedy)}
	case errors.As(err, &ge):
		return &failure{Exit: exitFailure, Kind: "guard-" + string(ge.Code), Message: plain(ge.Message), Remedy: plain(ge.Remedy)}
	case errors.Is(err, client.ErrNotRunning):
		return &failure{Exit: exitNotRunning, Kind: "hub-not-running", Message: err.Error(), Remedy: "start it with: " + a.self() + " start"}
	case errors.Is(err, client.ErrForeignSocket):
		return &failure{Exit: exitFailure, Kind: "forbidden", Message: err.Error(), Remedy: "name a socket of your own with --socket, or leave it out"}
	case errors.Is(err, os.ErrPermission):
		return &failure{Exit: exitFailure, Kind: "forbidden", Message: err.Error(), Remedy: "see: " + a.self() + " doctor"}
	case errors.Is(err, client.ErrLost):
		return &failure{Exit: exitFailure, Kind: "connection-lost", Message: err.Error(), Remedy: "see the hub's log, and: " + a.self() + " status"}
	case errors.As(err, &rpc):
		return a.explainRPC(rpc)
	case errors.As(err, &invalid), errors.As(err, &invalidMCP):
		return &failure{Exit: exitUsage, Kind: "configuration", Message: err.Error(), Remedy: "correct it, then check with: " + a.self() + " config validate"}
	}
	if flags := exclusiveFlags().FindStringSubmatch(err.Error()); flags != nil {
		return &failure{Exit: exitUsage, Kind: "usage", Message: "--" + strings.ReplaceAll(flags[1], " ", " and --") + " cannot be used together"}
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return pathFailure(e)
	}
	return &failure{Exit: exitFailure, Kind: "failure", Message: err.Error()}
}

// pathFailure is the failure for a file or directory that no command has explained.
func pathFailure(e *fs.PathError) *failure {
	f := &failure{Exit: exitFailure, Kind: "failure", Message: e.Error(), Remedy: "check the path, and what you may do there"}
	switch {
	case e.Op == "mkdir":
		f.Message = fmt.Sprintf("the directory %s cannot be created", e.Path)
	case errors.Is(e, fs.ErrNotExist):
		f.Message = fmt.Sprintf("there is no file %s", e.Path)
	case errors.Is(e, fs.ErrPermission):
		f.Message = fmt.Sprintf("you may not use the file %s", e.Path)
	case errors.Is(e, syscall.EISDIR):
		f.Message = fmt.Sprintf("%s is a directory", e.Path)
	}
	return f
}

// exclusiveFlags matches cobra's error for flags that exclude each other.
var exclusiveFlags = text.Pattern(`^if any flags in the group .* \[(.+)\] were all set$`)

var rpcFailures = map[int]struct {
	exit int
	kind string
	list string // the command that lists what there is: the hub's remedies name methods
}{
	jsonrpc.CodeInvalidParams:        {exitUsage, "invalid-params", ""},
	dialect.CodeTaskNotFound:         {exitNotFound, "task-not-found", "tasks"},
	dialect.CodeAgentNotFound:        {exitNotFound, "agent-not-found", "agents"},
	dialect.CodeContextNotFound:      {exitNotFound, "context-not-found", ""},
	dialect.CodeTaskNotCancelable:    {exitFailure, "task-not-cancelable", ""},
	dialect.CodeAgentUnavailable:     {exitUnavailable, "agent-unavailable", ""},
	dialect.CodeSwarmNotFound:        {exitNotFound, "swarm-not-found", "swarm list"},
	dialect.CodeSwarmState:           {exitFailure, "swarm-state", ""},
	dialect.CodeUnsupportedOperation: {exitFailure, "unsupported-operation", ""},
	dialect.CodeAuthenticationError:  {exitAuthRequired, "auth-required", ""},
	dialect.CodeTimeoutError:         {exitTimeout, "timeout", ""},
}

func (a *app) explainRPC(rpc *jsonrpc.Error) *failure {
	details := rpc.Details()
	f := &failure{Exit: exitFailure, Kind: "hub-error", Message: plain(rpc.Message), Remedy: plain(details.Remedy)}
	if known, ok := rpcFailures[rpc.Code]; ok {
		f.Exit, f.Kind = known.exit, known.kind
		if known.list != "" {
			f.Remedy = "list them with: " + a.self() + " " + known.list
		}
	}
	switch details.Code {
	case codeDocumentNotFound:
		f.Exit, f.Kind, f.Remedy = exitNotFound, "document-not-found", "list them with: "+a.self()+" doc list; the first edit creates one"
	case dialect.CodeOutcomeUnknown:
		f.Kind = kindOutcomeUnknown
	}
	return f
}

// stateExit is the exit code of a task that a command waited for.
func stateExit(state dialect.TaskState) int {
	switch state {
	case dialect.StateCompleted:
		return exitOK
	case dialect.StateInputRequired:
		return exitInputRequired
	case dialect.StateAuthRequired:
		return exitAuthRequired
	case dialect.StateFailed, dialect.StateRejected, dialect.StateCanceled:
		return exitTaskFailed
	}
	return exitFailure
}

// printFailure prints a failure to stderr.
func (a *app) printFailure(f *failure) {
	if f.quiet {
		return
	}
	if a.json() {
		writeJSON(a.stderr, map[string]*failure{"error": f})
		return
	}
	const label = "error:"
	message := plain(f.Message)
	if width := a.columns(a.stderr); width > 0 && !strings.Contains(message, "\n") {
		message = strings.TrimSpace(strings.TrimPrefix(hanging(label+" ", "  ", message, width), label))
	}
	fmt.Fprintf(a.stderr, "%s %s\n", a.errStyle.red(label), message)
	if f.Remedy != "" {
		fmt.Fprintf(a.stderr, "  %s\n", plain(f.Remedy))
	}
}

// writeJSON writes one value and a newline, with characters that a terminal obeys escaped. The commands' values always
// encode, and an error of a closed pipe could not be reported to anybody.
func writeJSON(w io.Writer, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
	_, _ = w.Write(display.EscapeJSON(b.Bytes()))
}
