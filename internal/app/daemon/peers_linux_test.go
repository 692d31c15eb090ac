package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/telemetry/audit"
)

// counted is the number of lines that the agent prints, 20 per second.
const counted = 50

const swarmYAML = `version: 1
http: {port: 0, token: sixteen-chars-or-more}
peers: {enabled: true, hyperswarm: {%s}}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  parrot: {driver: exec, command: cat}
  counter: {driver: exec, command: sh, probe: {version: [-c, "echo 1.0"]}, args: [-c, "cat >/dev/null; i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 0.05; done"]}
`

// site is a hub in its own process on its own host.
type site struct {
	host   *testbed.Host
	dir    string
	key    identity.PublicKey
	client *client.Client
}

// newSite writes the configuration of a hub on h.
func newSite(t *testing.T, h *testbed.Host, settings string) *site {
	t.Helper()
	s := &site{host: h, dir: newDir(t)}
	pair, err := identity.Load(peers.KeyPath(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	s.key = pair.Public()
	if err := os.WriteFile(filepath.Join(s.dir, "config.yaml"), fmt.Appendf(nil, swarmYAML, settings, counted), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) pair(t *testing.T, name string, other *site, address string) {
	t.Helper()
	list, err := identity.OpenAllowList(peers.AllowPath(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := list.Add(identity.Entry{Key: other.key, Name: name, Address: address}); err != nil {
		t.Fatal(err)
	}
}

// start starts the hub on its host.
func (s *site) start(t *testing.T) {
	t.Helper()
	var info daemon.Info
	var err error
	if err := s.host.Do(func() (err error) {
		info, err = daemon.Start(t.Context(), s.dir, hubCommand(t, "serve", s.dir))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, _, err := daemon.Stop(context.Background(), s.dir, shutdown(info.Socket)); err != nil {
			t.Error(err)
		}
	})
	if s.client, err = client.Dial(t.Context(), info.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.client.Close() })
}

func (s *site) awaitAgent(t *testing.T, id string) {
	t.Helper()
	happens(t, id+" is healthy", func() bool {
		all, err := s.client.Agents(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range all {
			if a.ID == id {
				return a.Health != nil && a.Health.Status == "healthy"
			}
		}
		return false
	})
}

func answerOf(task *dialect.Task) string {
	if task == nil || task.Status.Message == nil || len(task.Status.Message.Parts) == 0 || task.Status.Message.Parts[0].Text == nil {
		return ""
	}
	return strings.TrimSpace(*task.Status.Message.Parts[0].Text)
}

// tasks counts the hub's tasks, and those that are completed.
func (s *site) tasks(t *testing.T) (all, completed int) {
	t.Helper()
	page, err := s.client.Tasks(t.Context(), dialect.TasksListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range page.Tasks {
		if task.Status.State == dialect.StateCompleted {
			completed++
		}
	}
	return len(page.Tasks), completed
}

// Two paired hubs on two hosts find each other and run tasks on each other's agents. After the link between them was cut
// during an answer, no part is missing and no task ran twice (Req 1.7, 1.8, 3.6, 3.7, 4.4).
func TestTwoHubsOnTwoHosts(t *testing.T) {
	t.Parallel()
	if !testbed.Inside(t) {
		return
	}
	lab := testbed.NewLab(t)
	first, second := lab.Host(), lab.Host()
	address := netip.AddrPortFrom(first.Addr(), 49737).String()
	here, there := newSite(t, first, "public: '"+address+"'"), newSite(t, second, "")
	here.pair(t, "there", there, "")
	there.pair(t, "here", here, address)
	here.start(t)
	began := time.Now()
	there.start(t)
	here.awaitAgent(t, "there.counter")
	here.awaitAgent(t, "there.parrot")
	there.awaitAgent(t, "here.parrot")
	t.Logf("from the start of the second hub until both list the other's agents: %v", time.Since(began).Round(time.Millisecond))
	for _, c := range []struct {
		at *site
		id string
	}{{here, "there.parrot"}, {there, "here.parrot"}} {
		if task, err := c.at.client.Send(t.Context(), askFor(c.id, "hello")); err != nil || answerOf(task) != "hello" {
			t.Fatalf("%s: %q, %v", c.id, answerOf(task), err)
		}
	}

	done, _ := there.tasks(t)
	stream, err := here.client.Stream(t.Context(), askFor("there.counter", "count"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	awaitLine(t, stream, "line 5")
	lab.Unplug(second)
	const more = 5
	ids := make([]string, more)
	background := false
	for i := range ids { // these run while the link is cut
		p := askFor("there.parrot", fmt.Sprint("message ", i))
		p.Configuration = &dialect.SendConfig{Blocking: &background}
		task, err := here.client.Send(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = task.ID
	}
	happens(t, "the other hub has counted to the end", func() bool {
		_, completed := there.tasks(t)
		return completed == done+1
	})
	lab.Plug(second)
	mended := time.Now()
	var want []string
	for i := range counted {
		want = append(want, fmt.Sprint("line ", i))
	}
	if got := answerOf(last(t, stream)); got != strings.Join(want, "\n") {
		t.Errorf("the answer during the cut is\n%s", got)
	}
	t.Logf("the answer ends %v after the link is back", time.Since(mended).Round(time.Millisecond))
	for i, id := range ids {
		happens(t, "what was sent during the cut is answered", func() bool {
			task, err := here.client.Task(t.Context(), id)
			return err == nil && answerOf(task) == fmt.Sprint("message ", i)
		})
	}
	happens(t, "each was done, and done once", func() bool {
		all, completed := there.tasks(t)
		return all == done+1+more && completed == all
	})

	// The other hub's audit log names the hub that sent the requests.
	front, named := "~hub-l3@"+here.key.String(), false
	for rec, err := range audit.Read(daemon.AuditDir(there.dir)) {
		if err != nil {
			t.Fatal(err)
		}
		named = named || rec.Envelope != nil && rec.Envelope.Sender == front
	}
	if !named {
		t.Error("the audit log does not name the hub that sent the requests")
	}
}

// Two hubs behind symmetric NATs, where hole punching fails, connect through the relay of a third hub, and run tasks
// for each other (Req 3.6).
func TestTwoHubsBehindSymmetricNATs(t *testing.T) {
	t.Parallel()
	if !testbed.Inside(t) {
		return
	}
	lab := testbed.NewLab(t)
	host := lab.Host()
	address := netip.AddrPortFrom(host.Addr(), 49737).String()
	between := newSite(t, host, "relay: true, public: '"+address+"'")
	pair, err := identity.Load(peers.KeyPath(between.dir))
	if err != nil {
		t.Fatal(err)
	}
	through := fmt.Sprintf("relays: [%s]", peers.RelayKey(pair))
	here := newSite(t, lab.Network(testbed.Symmetric).Host(), through)
	there := newSite(t, lab.Network(testbed.Symmetric).Host(), through)
	for name, s := range map[string]*site{"here": here, "there": there} {
		between.pair(t, name, s, "")
		s.pair(t, "between", between, address)
	}
	here.pair(t, "there", there, "")
	there.pair(t, "here", here, "")
	between.start(t)
	here.start(t)
	there.start(t)
	here.awaitAgent(t, "there.parrot")
	there.awaitAgent(t, "here.parrot")
	for _, c := range []struct {
		at *site
		id string
	}{{here, "there.parrot"}, {there, "here.parrot"}} {
		if task, err := c.at.client.Send(t.Context(), askFor(c.id, "hello")); err != nil || answerOf(task) != "hello" {
			t.Errorf("%s: %q, %v", c.id, answerOf(task), err)
		}
	}
	if all, _ := between.tasks(t); all != 0 {
		t.Errorf("the relaying hub ran %d tasks", all)
	}
}

// awaitLine follows a task until its answer has a line.
func awaitLine(t *testing.T, stream *client.Stream, line string) {
	t.Helper()
	var text strings.Builder
	for !strings.Contains(text.String(), line) {
		e, err := stream.Next(t.Context())
		if err != nil {
			t.Fatalf("%v; the task is %+v", err, answerOf(stream.Task()))
		}
		if e.Artifact == nil {
			continue
		}
		for _, p := range e.Artifact.Artifact.Parts {
			if p.Text != nil {
				text.WriteString(*p.Text)
			}
		}
	}
}

// last reads a task's stream to its end.
func last(t *testing.T, stream *client.Stream) *dialect.Task {
	t.Helper()
	for {
		if _, err := stream.Next(t.Context()); err == io.EOF {
			return stream.Task()
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
