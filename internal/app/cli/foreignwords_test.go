//go:build unix

package cli_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/app/cli"
	"github.com/parleyhub/parley/internal/documents"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/swarm"
)

// forgedLine is a line that only words of others have.
const forgedLine = "The hub is running: forged"

// forged is in each text of a hub's answers: it breaks lines, moves the cursor and reverses words.
const forged = "a\n" + forgedLine + "\r\n\x1b]0;PWNED\x07\u202e\u009b2J\r" + forgedLine + "\u0085\x1b[31m"

// answersOf are the types of the answers of a hub, by method.
var answersOf = map[string]reflect.Type{
	dialect.MethodStatus:           reflect.TypeFor[dialect.Status](),
	dialect.MethodAgentsList:       reflect.TypeFor[[]dialect.Agent](),
	dialect.MethodAgentsFind:       reflect.TypeFor[dialect.Agent](),
	dialect.MethodAgentsRename:     reflect.TypeFor[dialect.Agent](),
	dialect.MethodAgentsHealth:     reflect.TypeFor[dialect.Health](),
	dialect.MethodSessionQuiet:     reflect.TypeFor[struct{}](),
	dialect.MethodSendersList:      reflect.TypeFor[[]dialect.AllowedSender](),
	dialect.MethodSenderRevoke:     reflect.TypeFor[dialect.AllowedSender](),
	dialect.MethodClaimsList:       reflect.TypeFor[[]dialect.FileClaim](),
	dialect.MethodClaimBreak:       reflect.TypeFor[dialect.BrokenClaim](),
	dialect.MethodTasksPage:        reflect.TypeFor[dialect.TaskPage](),
	dialect.MethodTaskGet:          reflect.TypeFor[dialect.Task](),
	dialect.MethodTaskCancel:       reflect.TypeFor[dialect.Task](),
	dialect.MethodTasksTrace:       reflect.TypeFor[dialect.TaskTrace](),
	dialect.MethodContextsList:     reflect.TypeFor[[]dialect.Context](),
	dialect.MethodIDs:              reflect.TypeFor[dialect.IDs](),
	dialect.MethodTotals:           reflect.TypeFor[dialect.Totals](),
	dialect.MethodSwarmList:        reflect.TypeFor[[]dialect.SwarmSummary](),
	dialect.MethodSwarmGet:         reflect.TypeFor[swarm.Session](),
	dialect.MethodSwarmStop:        reflect.TypeFor[swarm.Session](),
	dialect.MethodDocumentsList:    reflect.TypeFor[[]string](),
	dialect.MethodDocumentsGet:     reflect.TypeFor[documents.Content](),
	dialect.MethodDocumentsShares:  reflect.TypeFor[map[string]documents.Role](),
	dialect.MethodDocumentsCompact: reflect.TypeFor[dialect.DocumentCompacted](),
}

// printing are the commands that print what a hub answers, with the arguments for each.
var printing = map[string][][]string{
	"status": {nil}, "agents": {nil, {"--health"}}, "agents rename": {{"x", "y"}}, "agents quiet": {{"x"}}, "claims": {nil}, "claims break": {{"x"}},
	"tasks": {nil}, "task show": {{"x"}, {"x", "--trace"}}, "task cancel": {{"x"}}, "contexts": {nil}, "senders": {nil, {"--revoke", "x"}}, "totals": {nil},
	"swarm list": {nil}, "swarm show": {{"x"}}, "swarm stop": {{"x"}}, "doc list": {nil}, "doc show": {{"x"}}, "doc share": {{"x"}}, "doc compact": {{"x"}},
}

// printingElsewhere are the commands that print no answers of a hub but a stream or what is on the bus and on the disk, which other tests look
// at, or nothing of others.
var printingElsewhere = []string{
	"", "completion", "conformance", "demo", "doctor", "help", "install", "uninstall", "man", "version", "upgrade", "start", "stop", "ui", "logs", "repair", "hook",
	"guard", "guard check", "guard install", "guard uninstall", "service", "service install", "service status", "service uninstall", "config", "config path",
	"config show", "config validate", "completion bash", "completion fish", "completion powershell", "completion zsh", "mcp", "trust", "roster",
	"send", "task", "task follow", "swarm", "swarm run", "loop", "loop run", "loop list", "loop status", "loop stop", "replay", "doc", "doc edit", "doc watch", "events",
	"network", "network admit", "network agents", "network dead-letters", "network inbox", "network permissions", "network send", "network work",
	"channels", "channels list", "channels post", "channels read", "peers", "peers list", "peers pair", "peers remove",
}

// forgery fills answers with words.
type forgery struct {
	named string // for texts of a type of their own, such as states
	task  dialect.TaskState
	flag  bool
}

const forgeryDepth = 8

func (f forgery) fill(v reflect.Value, depth int) {
	switch {
	case depth > forgeryDepth || !v.CanSet():
		return
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Now().Add(-time.Minute)))
		return
	case v.Type() == reflect.TypeFor[dialect.TaskState]():
		v.SetString(string(f.task))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(forged)
		if v.Type() != reflect.TypeFor[string]() {
			v.SetString(f.named)
		}
	case reflect.Bool:
		v.SetBool(f.flag)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem(), depth+1)
	case reflect.Interface:
		v.Set(reflect.ValueOf(forged))
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i), depth+1)
		}
		f.meaning(v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 { // JSON, or the bytes of a file
			v.SetBytes(mustJSON(map[string]any{"text": forged, forged: forged}))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		f.fill(element, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(forged).Convert(v.Type().Key()), element)
	}
}

// meaning adds what the structures say by members whose types do not show it.
func (f forgery) meaning(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *dialect.Task:
		x.Metadata = map[string]any{hub.MetaAgent: forged, hub.MetaNotices: []any{forged}, hub.MetaUsage: f.object(reflect.TypeFor[map[string]any]()),
			hub.MetaDir: f.object(reflect.TypeFor[hub.WorkDir]()), hub.MetaSender: f.object(reflect.TypeFor[hub.Sender]()), hub.MetaReceipts: f.object(reflect.TypeFor[hub.Receipts]()),
			hub.MetaDelegation: f.object(reflect.TypeFor[hub.Delegation]()), hub.MetaSummary: map[string]any{"prompt": forged, "model": forged, "turns": 2.0}}
	case *dialect.Message:
		x.Role = map[bool]string{true: dialect.RoleUser, false: dialect.RoleAgent}[f.flag]
		x.Metadata = map[string]any{hub.MetaError: map[string]any{"code": forged, "remedy": forged}}
		words := forged
		x.Parts = []dialect.Part{{Kind: dialect.KindText, Text: &words}, dialect.FilePart(dialect.File{Name: forged, MimeType: forged, URI: forged})}
		if f.flag {
			question := dialect.DataPart(f.object(reflect.TypeFor[hub.PermissionData]()).(map[string]any))
			question.Metadata = map[string]any{hub.MetaPermission: true}
			x.Parts = append(x.Parts, question)
		}
	}
}

// object returns a filled value as a client decodes it.
func (f forgery) object(t reflect.Type) (decoded any) {
	v := reflect.New(t).Elem()
	f.fill(v, 1)
	if err := json.Unmarshal(mustJSON(v.Interface()), &decoded); err != nil {
		panic(err)
	}
	return decoded
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// hub answers every method with forged words.
func (f forgery) hub(t *testing.T) setup {
	t.Helper()
	p := newSetup(t)
	lock := flock.New(filepath.Join(p.dir, "hub.lock")) // as a hub that has this data directory
	if ok, err := lock.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	handler := jsonrpc.HandlerFunc(func(_ context.Context, req jsonrpc.Request, _ jsonrpc.Emit) (any, error) {
		answer := answersOf[req.Method]
		if answer == nil {
			t.Errorf("%s has no answer here", req.Method)
			return struct{}{}, nil
		}
		v := reflect.New(answer)
		f.fill(v.Elem(), 0)
		switch x := v.Interface().(type) {
		case *dialect.Status:
			x.DataDir, x.Socket = p.dir, p.socket
		case *dialect.IDs:
			x.IDs = []string{"x"}
		case *dialect.TaskPage:
			x.NextCursor = ""
		}
		return v.Interface(), nil
	})
	s, err := server.New(server.Config{Socket: p.socket, SocketHandler: handler})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Whatever is in the texts of a hub's answers: no command that prints them lets a terminal obey them, and none begins a line with them. A
// command, a method or a field that is new is tried, too.
func TestNoCommandPrintsForeignWordsAsItsOwn(t *testing.T) {
	t.Parallel()
	for _, f := range []forgery{{"", dialect.StateCompleted, false}, {forged, dialect.StateAuthRequired, true}, {forged, dialect.StateFailed, false}, {"", dialect.StateInputRequired, true}, {forged, forged, true}} {
		p := f.hub(t)
		for _, words := range cli.CommandLines("parley") {
			name := strings.Join(words, " ")
			calls, ok := printing[name]
			if !ok && !slices.Contains(printingElsewhere, name) {
				t.Errorf("%s is not tried", name)
			}
			for _, args := range calls {
				args = slices.Concat(words, args)
				f.check(t, args, p.run(t, args...))
				f.check(t, args, p.run(t, slices.Concat([]string{"--format", "json"}, args)...))
			}
		}
	}
}

func (f forgery) check(t *testing.T, args []string, o outcome) {
	t.Helper()
	said := o.stdout + o.stderr
	if !strings.Contains(said, "forged") && !slices.Contains([]string{"quiet", "rename", "compact"}, args[len(args)-min(len(args), 2)]) && o.code != 0 {
		t.Errorf("%q does not print what the hub has answered: %+v", args, o)
	}
	if hasHidden(said) {
		t.Errorf("%q prints %q", args, said)
	}
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, forgedLine) {
			t.Errorf("%q prints a line of others as its own: %q", args, said)
			break
		}
	}
}
