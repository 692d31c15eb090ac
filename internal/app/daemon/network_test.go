//go:build unix

package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/app/busfinder"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
)

// membershipsOf returns the memberships of a project of this computer in the network on the hub's bus.
func membershipsOf(t *testing.T, dir, project string) *agentnet.Memberships {
	t.Helper()
	return membershipsFor(t, dir, project, store.DefaultAckTimeout)
}

// membershipsFor is membershipsOf with a time for which an agent may hold work, in whole seconds.
func membershipsFor(t *testing.T, dir, project string, lease time.Duration) *agentnet.Memberships {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	finder := busfinder.New(busfinder.Config{Config: bus.Config{Name: project, Logger: log}, Hub: func(context.Context) (*config.Loaded, error) { return load(dir) }})
	l := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: project, ProjectID: "0123456789abcdef", AckTimeout: lease, Logger: log}},
		func(ctx context.Context, a registry.AdmissionRequest) (agentnet.Admission, *bus.Bus, error) {
			return finder.DialAgent(ctx, dialect.NetworkJoinParams{AckTimeout: int(lease.Seconds())}, a)
		})
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

func enter(t *testing.T, l *agentnet.Memberships, agentType string) *agentnet.Agent {
	t.Helper()
	a, err := l.Register(t.Context(), registry.Registration{Handle: agentType, AgentType: agentType, Capabilities: []string{"go"},
		Scope: registry.ScopeProject, Visibility: store.Public})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The restricted credentials that the hub gives agents allow all tools of the network.
func TestConfinedAgentsOfThisComputerWorkTogether(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer func() { r.end(t) }()
	shop, blog := membershipsOf(t, dir, "/shop"), membershipsOf(t, dir, "/blog")
	ann, bob := enter(t, shop, "dispatcher"), enter(t, blog, "worker")
	d, err := ann.Discover(t.Context(), registry.Filter{Capability: "go"})
	if err != nil || len(d.Agents) != 2 {
		t.Fatalf("%+v, %v", d, err)
	}
	sent, err := ann.Send(t.Context(), mail.Message{Recipient: bob.GUID(), Text: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := bob.Wait(t.Context(), mail.Selection{}); err != nil || len(got) != 1 || got[0].Text != "hello" {
		t.Errorf("%+v, %v", got, err)
	}
	if s, err := ann.MessageStatus(t.Context(), sent.ID); err != nil || s.Status != mail.Read {
		t.Errorf("%+v, %v", s, err)
	}
	claim := func(task string) *work.Claim {
		t.Helper()
		if _, err := ann.Submit(t.Context(), work.Submission{Capability: "go", Offer: mail.Offer{TaskID: task, Description: "d"}}); err != nil {
			t.Fatal(err)
		}
		c, err := bob.Claim(t.Context(), nil)
		if err != nil || c == nil || c.TaskID != task {
			t.Fatalf("%+v, %v", c, err)
		}
		return c
	}
	c := claim("A")
	if _, err := bob.Extend(t.Context(), "A", c.Token); err != nil {
		t.Error(err)
	}
	if err := bob.Complete(t.Context(), "A", c.Token, work.Outcome{Success: true, Summary: "done"}); err != nil {
		t.Error(err)
	}
	c = claim("B")
	if dead, err := bob.Reject(t.Context(), "B", c.Token, "no", true); err != nil || !dead {
		t.Errorf("%v, %v", dead, err)
	}
	if _, err := ann.RetryDeadLetter(t.Context(), "B", true); err != nil {
		t.Error(err)
	}
	if _, err := ann.Submit(t.Context(), work.Submission{Capability: "deadletter", Offer: mail.Offer{Description: "d"}}); err == nil {
		t.Error("a reserved queue was accepted")
	}
	idle := registry.Idle
	if _, err := ann.UpdatePresence(t.Context(), registry.Changes{Status: idle}); err != nil {
		t.Error(err)
	}

	// A second agent of a type gets its own entry; the entry of an agent that has left is reused.
	twin := enter(t, membershipsOf(t, dir, "/blog"), "worker")
	if twin.GUID() == bob.GUID() {
		t.Error("two agents have one entry")
	}
	if _, err := blog.Leave(t.Context(), bob); err != nil {
		t.Error(err)
	}
	if again := enter(t, blog, "worker"); again.GUID() != bob.GUID() || !again.Reused() {
		t.Errorf("%s registered again as %s", bob.GUID(), again.GUID())
	}

	// After a restart of the hub the agents are still registered.
	r.end(t)
	r = run(t, mustLoad(t, dir, "http.enabled=false"))
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for {
		_, err := ann.Send(ctx, mail.Message{Recipient: twin.GUID(), Text: "still there?"})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	// A message whose Send failed without a response may be stored, too.
	if got, _, err := twin.Wait(ctx, mail.Selection{}); err != nil || len(got) == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// REQ-SEC-CROSS-003: a program that uses an agent's credential directly reaches the agent's entry, its inbox and the
// queues, and nothing else.
func TestAnAgentsCredentialHasOnlyItsRights(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	r := run(t, mustLoad(t, dir, "http.enabled=false"))
	defer r.end(t)
	victim := enter(t, membershipsOf(t, dir, "/shop"), "dispatcher")
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g, err := c.JoinNetwork(t.Context(), dialect.NetworkJoinParams{AgentType: "attacker", ProjectPath: "/evil"})
	if err != nil {
		t.Fatal(err)
	}
	denied := make(chan error, 100)
	inbox := store.InboxPrefix(g.GUID)
	nc, err := nats.Connect("nats://"+g.Address, nats.UserInfo(g.User, g.Password), nats.CustomInboxPrefix(inbox),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	refused := func(what string) {
		t.Helper()
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-denied:
			if !strings.Contains(err.Error(), "ermissions") {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s is allowed", what)
		}
	}
	theirs := "GLOBAL_AGENT_INBOX_" + victim.GUID()
	for _, subject := range []string{">", "*", "global.>", "global.agent.*", "global.agent." + victim.GUID(), "_INBOX.>", store.InboxPrefix(victim.GUID()) + ".>",
		"$JS.>", "$KV.>", "$SYS.>", "global.workqueue.go", "global.workqueue.>", "global.hub.>", "global.outbox.*"} {
		if _, err := nc.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		refused("to subscribe to " + subject)
	}
	for _, subject := range []string{
		"$KV.agent-registry." + victim.GUID(), "$KV.agent-registry-identities.guid." + victim.GUID(), "$KV.agent-registry-limits." + victim.GUID() + ".updates",
		"global.mail.read." + victim.GUID(), "global.mail.receipt." + victim.GUID() + "." + victim.GUID() + ".x", "global.audit.registry",
		"global.outbox." + victim.GUID(), "global.hub.desk.x." + victim.GUID(),
		"$JS.API.STREAM.MSG.GET." + theirs, "$JS.API.DIRECT.GET." + theirs, "$JS.API.STREAM.PURGE." + theirs, "$JS.API.STREAM.DELETE." + theirs,
		"$JS.API.STREAM.MSG.DELETE." + theirs, "$JS.API.CONSUMER.CREATE." + theirs + ".x", "$JS.API.CONSUMER.CREATE." + theirs + ".workers",
		"$JS.API.CONSUMER.DURABLE.CREATE." + theirs + ".workers", "$JS.API.STREAM.CREATE.mirror", "$JS.API.STREAM.UPDATE." + theirs, "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES",
		"$JS.API.STREAM.SNAPSHOT." + theirs, "$JS.API.STREAM.PURGE.KV_agent-registry", "$JS.API.STREAM.DELETE.KV_agent-registry", "$JS.API.CONSUMER.CREATE.KV_agent-registry.x",
		"$JS.API.CONSUMER.DELETE.GLOBAL_WORKQUEUE_go.workers", "$JS.API.STREAM.PURGE.GLOBAL_WORKQUEUE_go", "$SYS.REQ.SERVER.PING", store.InboxPrefix(victim.GUID()) + ".x",
	} {
		if err := nc.PublishRequest(subject, inbox+".x", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		refused("to publish to " + subject)
	}

	// The hub creates queues for an agent, and does not answer on a subject that the agent may not publish to.
	if err := nc.PublishRequest(g.Control, "$KV.agent-registry."+victim.GUID(), []byte("Not A Queue")); err != nil {
		t.Fatal(err)
	}
	if m, err := nc.Request(g.Control, []byte("Not A Queue"), 20*time.Second); err != nil || !strings.Contains(string(m.Data), "cannot name a work queue") {
		t.Errorf("%v, %v", m, err)
	}
	if e, _, err := victim.Info(t.Context(), victim.GUID()); err != nil || e.Handle != "dispatcher" {
		t.Errorf("the victim's entry: %+v, %v", e, err)
	}

	// A credential is valid for one connection, and the secret of an entry is not in the bucket.
	if again, err := nats.Connect("nats://"+g.Address, nats.UserInfo(g.User, g.Password)); err == nil {
		again.Close()
		t.Error("a credential is valid for two connections")
	}
	_, err = c.JoinNetwork(t.Context(), dialect.NetworkJoinParams{AgentType: "dispatcher", ProjectPath: "/shop", GUID: victim.GUID(), Secret: "guessed"})
	if err == nil || !strings.Contains(err.Error(), "taken over") {
		t.Errorf("another agent's entry: %v", err)
	}
	other, err := c.JoinNetwork(t.Context(), dialect.NetworkJoinParams{AgentType: "dispatcher", ProjectPath: "/shop"})
	if err != nil || other.GUID == victim.GUID() {
		t.Errorf("%+v, %v", other, err)
	}
	for _, wrong := range []dialect.NetworkJoinParams{{}, {AgentType: "No Type"}} {
		if _, err := c.JoinNetwork(t.Context(), wrong); err == nil {
			t.Errorf("%+v is admitted", wrong)
		}
	}
}

// client connects to the hub's socket.
func (r *running) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the hub has ended
	return c
}

// An agent that rests has its identity and its permissions as one that is connected, for as long as the connection to the socket lasts.
func TestARestKeepsTheIdentityAndItsPermissions(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t), "http.enabled=false"))
	defer r.end(t)
	c := r.client(t)
	join := func() *dialect.NetworkGrant {
		t.Helper()
		g, err := c.JoinNetwork(t.Context(), dialect.NetworkJoinParams{AgentType: "worker", ProjectPath: "/shop", LateInbox: true})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	denied := make(chan error, 10)
	connect := func(g dialect.BusGrant, guid string) *nats.Conn {
		t.Helper()
		nc, err := nats.Connect("nats://"+g.Address, nats.UserInfo(g.User, g.Password), nats.CustomInboxPrefix(store.InboxPrefix(guid)),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { denied <- err }))
		if err != nil {
			t.Fatal(err)
		}
		return nc
	}
	g, other := join(), join()
	nc := connect(g.BusGrant, g.GUID)
	for _, wrong := range []dialect.NetworkRestParams{{}, {GUID: g.GUID}, {User: g.User}, {GUID: g.GUID, User: other.User}, {GUID: other.GUID, User: g.User}} {
		if _, err := client.Rest(t.Context(), r.info.Socket, wrong); err == nil {
			t.Errorf("the rest of %+v is granted", wrong)
		}
	}
	rest, err := client.Rest(t.Context(), r.info.Socket, dialect.NetworkRestParams{GUID: g.GUID, User: g.User})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Rest(t.Context(), r.info.Socket, dialect.NetworkRestParams{GUID: g.GUID, User: g.User}); err == nil {
		t.Error("a second rest at once")
	}
	nc.Close()
	if third := join(); third.GUID == g.GUID {
		t.Error("another agent has the identity of one that rests")
	}
	if err := rest.Wake(); err != nil {
		t.Fatal(err)
	}
	rested, err := rest.Wait()
	if err != nil || rested.Reason != dialect.RestAsked || rested.User != g.User || rested.Password == g.Password {
		t.Fatalf("%+v, %v", rested, err)
	}
	nc = connect(rested.BusGrant, g.GUID)
	if err := errors.Join(rest.Close(), nc.Publish("$KV.agent-registry."+other.GUID, nil), nc.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := <-denied; !strings.Contains(err.Error(), other.GUID) {
		t.Error(err)
	}

	rest, err = client.Rest(t.Context(), r.info.Socket, dialect.NetworkRestParams{GUID: g.GUID, User: g.User})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := rest.Close(); err != nil { // as when the process is killed
		t.Fatal(err)
	}
	wait.Eventually(t, "the identity", func() bool { return join().GUID == g.GUID })
}

// The hub may notice the end of a rest's connection only when the agent is in its next rest.
func TestTheLateEndOfARestIsNotThatOfTheNext(t *testing.T) {
	t.Parallel()
	r := run(t, mustLoad(t, newDir(t), "http.enabled=false"))
	defer r.end(t)
	c := r.client(t)
	g, err := c.JoinNetwork(t.Context(), dialect.NetworkJoinParams{AgentType: "worker", ProjectPath: "/shop", LateInbox: true})
	if err != nil {
		t.Fatal(err)
	}
	params := dialect.NetworkRestParams{GUID: g.GUID, User: g.User}

	first, err := net.Dial("unix", r.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	answers := json.NewDecoder(first)
	send := func(message string, answer any) {
		t.Helper()
		if _, err := fmt.Fprintln(first, message); err != nil {
			t.Fatal(err)
		}
		if err := answers.Decode(answer); err != nil {
			t.Fatal(err)
		}
	}
	send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"guid":%q,"user":%q}}`, dialect.MethodNetworkRest, g.GUID, g.User), &struct{}{})
	var rested struct{ Result dialect.NetworkRested }
	send(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{}}`, dialect.NotifyWake), &rested)
	nc, err := nats.Connect("nats://"+rested.Result.Address, nats.UserInfo(g.User, rested.Result.Password))
	if err != nil {
		t.Fatal(err)
	}

	next, err := client.Rest(t.Context(), r.info.Socket, params)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	nc.Close()
	if _, err := fmt.Fprintln(first, strings.Repeat(" ", 1<<10)); err != nil { // too long: the hub ends the connection
		t.Fatal(err)
	}
	if err := answers.Decode(&struct{}{}); err == nil {
		t.Fatal("the first rest goes on")
	}
	if err := next.Wake(); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Wait(); err != nil {
		t.Error(err)
	}
}

// sessionOf connects an agent over HTTP with a revision of the protocol, and returns the function that calls tools.
func sessionOf(t *testing.T, hubURL, project, revision string) func(tool string, arguments map[string]any) (string, map[string]any) {
	t.Helper()
	transport := &http.Transport{}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "web", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: hubURL + "/mcp?project=" + url.QueryEscape(project), HTTPClient: &http.Client{Transport: transport}},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close() // the hub may have stopped
		transport.CloseIdleConnections()
	})
	token := ""
	return func(tool string, arguments map[string]any) (string, map[string]any) {
		t.Helper()
		full := map[string]any{}
		for name, v := range arguments {
			full[name] = v
		}
		if token != "" {
			full["session"] = token
		}
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: full})
		if err != nil {
			t.Fatal(err)
		}
		content, _ := result.StructuredContent.(map[string]any)
		text := result.Content[0].(*mcp.TextContent).Text
		if _, found, ok := strings.Cut(text, "session with the value "); ok {
			token, _, _ = strings.Cut(found, " ")
		}
		return text, content
	}
}

// Agents at the hub's /mcp, in both revisions of the protocol and without configuration, and an agent with its own
// process are in one network.
func TestTheNetworkIsServedOverHTTP(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // no configuration of the user's
	dir := newDir(t)
	r := run(t, mustLoad(t, dir))
	defer r.end(t)
	own := enter(t, membershipsOf(t, dir, "/blog"), "writer")
	var guids []string
	for i, revision := range []string{"2025-11-25", "2026-07-28"} {
		project := newDir(t)
		if i == 1 {
			project = "" // without a project
		}
		call := sessionOf(t, r.info.HTTP, project, revision)
		if text, _ := call("discover_agents", nil); !strings.HasPrefix(text, "NotRegisteredError") {
			t.Errorf("%s: %s", revision, text)
		}
		text, me := call("register_agent", map[string]any{"agentType": fmt.Sprint("worker-", i), "capabilities": []string{"go"}, "scope": "cross-project", "visibility": "public"})
		if me == nil {
			t.Fatalf("%s: %s", revision, text)
		}
		guids = append(guids, me["guid"].(string))
		if text, _ := call("discover_agents", nil); !strings.Contains(text, own.GUID()) || !strings.Contains(text, guids[0]) {
			t.Errorf("%s: %s", revision, text)
		}
		if text, _ := call("send_direct_message", map[string]any{"recipientGuid": own.GUID(), "message": revision}); !strings.HasPrefix(text, "Message sent to writer") {
			t.Errorf("%s: %s", revision, text)
		}
		got, _, err := own.Wait(t.Context(), mail.Selection{})
		if err != nil || len(got) != 1 || got[0].Text != revision || got[0].SenderGUID != guids[i] {
			t.Fatalf("%s: %+v, %v", revision, got, err)
		}
		if _, err := own.Send(t.Context(), mail.Message{Recipient: guids[i], Text: "answer"}); err != nil {
			t.Error(err)
		}
		if text, _ := call("wait_for_direct_messages", map[string]any{"timeout_seconds": 30}); !strings.Contains(text, "answer") {
			t.Errorf("%s: %s", revision, text)
		}
	}
	if guids[0] == guids[1] {
		t.Error("two agents have one entry")
	}
}
