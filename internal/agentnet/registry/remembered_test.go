package registry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func shop(dir string) store.Config {
	return store.Config{StateDir: dir, ProjectPath: "/shop", Hostname: "h"}
}

func remember(t *testing.T, dir, hub, agentType, handle string) *registry.Remembered {
	t.Helper()
	return rememberFor(t, dir, hub, agentType, handle, "")
}

func rememberFor(t *testing.T, dir, hub, agentType, handle, conversation string) *registry.Remembered {
	t.Helper()
	r, err := registry.Remember(t.Context(), shop(dir), hub, registry.Registration{AgentType: agentType, Handle: handle, Conversation: conversation})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	return r
}

// Each process has an identity of its own; one that comes back has that of its handle, and no other one.
func TestTheComputerRemembersIdentities(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	a, b := remember(t, dir, "hub", "worker", "ann"), remember(t, dir, "hub", "worker", "bob")
	adm := store.Admission{GUID: "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", Secret: "a"}
	bob := store.Admission{GUID: "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42", Secret: "b"}
	for r, adm := range map[*registry.Remembered]store.Admission{a: adm, b: bob} {
		if r.GUID != "" {
			t.Errorf("a new identity: %+v", r)
		}
		if err := r.Keep(adm, map[string]string{"a": "ann", "b": "bob"}[adm.Secret], ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []*registry.Remembered{remember(t, dir, "other hub", "worker", "ann"), remember(t, dir, "hub", "reviewer", "ann"), remember(t, dir, "hub", "worker", "ann")} {
		if other.GUID != "" {
			t.Errorf("another's identity: %s", other.GUID)
		}
		other.Release()
	}
	a.Release()
	b.Release()
	if again := remember(t, dir, "hub", "worker", "bob"); again.GUID != bob.GUID || again.Secret != "b" {
		t.Errorf("%+v", again)
	}
	other := remember(t, dir, "hub", "worker", "cid")
	if other.GUID != "" {
		t.Errorf("an agent with another handle has the identity %s", other.GUID)
	}
	other.Release()
	files, err := filepath.Glob(filepath.Join(dir, "*.0.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the secret: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(files[0], []byte(`{"guid":"x`), 0o600); err != nil {
		t.Fatal(err)
	}
	if damaged := remember(t, dir, "hub", "worker", "ann"); damaged.GUID != adm.GUID {
		t.Errorf("from the copy of a damaged file: %+v", damaged)
	} else {
		damaged.Release()
	}
	for _, path := range []string{files[0], files[0] + ".copy"} {
		if err := os.WriteFile(path, []byte(`{"guid":"x`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if damaged := remember(t, dir, "hub", "worker", "ann"); damaged.GUID != "" {
		t.Errorf("from a damaged file: %+v", damaged)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Remember(t.Context(), store.Config{StateDir: file}, "hub", registry.Registration{AgentType: "worker", Handle: "ann"}); err == nil {
		t.Error("a file is no directory")
	}
}

// Of several agents of a kind and a handle that are gone, a conversation that is resumed is the one that it was last.
func TestAConversationIsTheAgentThatItWas(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	guids := []string{"7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11", "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42", "3d0a0c6e-51c4-4f0e-9a51-95f2d6f2a001"}
	open := func(conversation string) *registry.Remembered {
		return rememberFor(t, dir, "hub", "codex", "codex", conversation)
	}
	converse := func(r *registry.Remembered, conversation string) bool {
		t.Helper()
		elsewhere, err := r.Converse(t.Context(), shop(dir), "hub", registry.Registration{AgentType: "codex", Handle: "codex", Conversation: conversation})
		if err != nil {
			t.Fatal(err)
		}
		return elsewhere
	}
	var all []*registry.Remembered
	for i, guid := range guids {
		r := open("")
		if err := r.Keep(store.Admission{GUID: guid, Secret: "s"}, "codex", ""); err != nil {
			t.Fatal(err)
		}
		own := fmt.Sprint("t", i)
		for _, conversation := range []string{own, own, strings.Repeat("x", 1000)} {
			if converse(r, conversation) {
				t.Errorf("%.10s is elsewhere", conversation)
			}
		}
		all = append(all, r)
	}
	if converse(all[0], "t1") {
		t.Error("a conversation whose agent lives is elsewhere")
	}
	converse(all[0], "t0")
	for _, r := range all {
		r.Release()
	}
	for _, i := range []int{1, 2, 0} {
		if r := open(fmt.Sprint("t", i)); r.GUID != guids[i] {
			t.Errorf("t%d is %s", i, r.GUID)
		} else {
			r.Release()
		}
	}
	// Its program tells the conversation only later: it is said that another identity is the conversation's, which it gets then.
	early := open("")
	if early.GUID != guids[0] || !converse(early, "t2") || converse(early, "new") {
		t.Errorf("%s has the conversation of %s", early.GUID, guids[2])
	}
	if other := open("t0"); other.GUID == guids[0] || other.GUID == "" {
		t.Errorf("while its agent lives in another conversation, t0 is %q", other.GUID)
	} else {
		other.Release()
	}
	early.Release()
	if again := open("t0"); again.GUID != guids[0] {
		t.Errorf("after another conversation, t0 is %s", again.GUID)
	}
	for i := range 40 {
		converse(all[0], fmt.Sprint("many", i))
	}
	if info, err := os.Stat(slotFile(t, dir)); err != nil || info.Size() > 4<<10 {
		t.Errorf("the file grows: %v, %v", info, err)
	}
}

// A program begins its MCP server anew before the former one has ended: the new one waits for it, and is the same agent. If the former stays,
// it is another one.
func TestAConversationIsHandedOver(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	const guid = "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"
	synctest.Test(t, func(t *testing.T) {
		former := rememberFor(t, dir, "hub", "claude", "claude", "c1")
		if err := former.Keep(store.Admission{GUID: guid, Secret: "s"}, "claude", "c1"); err != nil {
			t.Fatal(err)
		}
		if other := rememberFor(t, dir, "hub", "claude", "claude", "c1"); other.GUID != "" {
			t.Errorf("beside a live process it is %s", other.GUID)
		} else {
			other.Release()
		}
		go func() {
			time.Sleep(time.Second) // of the bubble's clock
			former.Release()
		}()
		if now := rememberFor(t, dir, "hub", "claude", "claude", "c1"); now.GUID != guid {
			t.Errorf("it is %q, was %s", now.GUID, guid)
		}
	})
}

func TestWhatAnAgentHasRegisteredItselfAsIsRemembered(t *testing.T) {
	t.Parallel()
	cfg := store.Config{Hostname: "h", ProjectPath: "/p", StateDir: filepath.Join(t.TempDir(), "agents")}
	itself := registry.Registration{Handle: "codex", AgentType: "codex", Vendor: "codex", Scope: registry.ScopeProject, Conversation: "t1"}
	said := itself
	said.Handle, said.AgentType, said.Scope, said.Visibility, said.Capabilities, said.MaxConcurrentTasks = "reviewer", "reviewer", registry.ScopeUser, store.Public, []string{"review"}, 3
	is := func(what string, r registry.Registration, want *registry.Registration) {
		t.Helper()
		got, ok := registry.Said(cfg, "hub", r)
		if ok != (want != nil) || ok && !reflect.DeepEqual(got, *want) || !ok && !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v", what, got, ok)
		}
	}
	say := func(r registry.Registration) {
		t.Helper()
		if err := registry.Say(t.Context(), cfg, "hub", r); err != nil {
			t.Fatal(err)
		}
	}
	is("before", itself, nil)
	say(said)
	is("in the conversation", itself, &said)
	named, asNamed := itself, said
	named.Handle, asNamed.Handle = "bob", "bob"
	is("under a handle of its own", named, &asNamed)
	for what, change := range map[string]func(*registry.Registration){
		"another conversation": func(r *registry.Registration) { r.Conversation = "t2" },
		"another program":      func(r *registry.Registration) { r.Vendor = "claude" },
		"no program":           func(r *registry.Registration) { r.Vendor = "" },
		"no conversation":      func(r *registry.Registration) { r.Conversation = "" },
	} {
		r := itself
		change(&r)
		is(what, r, nil)
	}
	if _, ok := registry.Said(cfg, "another hub", itself); ok {
		t.Error("another hub's registration is taken")
	}
	other := said
	other.Conversation, other.AgentType, other.Handle = "t2", "tester", "tester"
	say(other)
	is("beside another conversation", itself, &said)
	if err := registry.Unsay(t.Context(), cfg, "hub", itself); err != nil {
		t.Fatal(err)
	}
	is("after it was forgotten", itself, nil)
	say(said)

	// The largest and strangest registrations and conversations: the file stays small, the latest are kept, and so are identities.
	large := said
	for range registry.MaxCapabilities {
		large.Capabilities = append(large.Capabilities, strings.Repeat("<", store.MaxName))
	}
	large.Capabilities = large.Capabilities[1:]
	for i := range 100 {
		large.Conversation = fmt.Sprint(strings.Repeat("<\x00", 125), i)
		say(large)
	}
	last := itself
	last.Conversation = large.Conversation
	is("the last of many", last, &large)
	is("long ago", itself, nil)
	files, err := filepath.Glob(filepath.Join(cfg.StateDir, "said.*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if info, err := os.Stat(files[0]); err != nil || info.Size() > 64<<10 || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if err := os.WriteFile(files[0], []byte(`[{"conversation":"t1","agentType":"../x","scope":"world"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	is("of a damaged file", itself, nil)
	say(said)
	is("after the damage", itself, &said)
}

// Conversations with the strangest ids do not make an identity's file too large to be read again.
func TestStrangeConversationsDoNotLoseAnIdentity(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	strange := func(i int) string { return fmt.Sprintf("%s%02d", strings.Repeat("<", 254), i) }
	r := rememberFor(t, dir, "hub", "codex", "codex", strange(0))
	const guid = "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11"
	for i := range 20 {
		if err := r.Keep(store.Admission{GUID: guid, Secret: "s"}, "codex", strange(i)); err != nil {
			t.Fatal(err)
		}
	}
	r.Release()
	r = rememberFor(t, dir, "hub", "codex", "codex", strange(19))
	defer r.Release()
	if r.GUID != guid {
		t.Errorf("the identity is %q", r.GUID)
	}
}

func slotFile(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.0.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	return files[0]
}

// An agent that comes back is the same at once, though the hub takes its former process to be live, and also if the hub has
// lost the record of its identity; but not if somebody else has proven to be the holder.
func TestAnAgentThatComesBackIsTheSame(t *testing.T) {
	t.Parallel()
	r := nettest.NewHub(t)
	dir := t.TempDir()
	boss := nettest.Enter(t, r.Memberships("/boss"), nettest.Dispatcher())
	members := func(state string) *agentnet.Memberships {
		return agentnet.NewMemberships(agentnet.Config{
			BusConfig: store.Config{ProjectPath: "/shop", StateDir: state, Logger: slog.New(slog.DiscardHandler)},
			Hub:       func(context.Context) (string, error) { return "hub", nil },
		}, r.Admit)
	}
	enter := func() (*agentnet.Agent, func()) {
		t.Helper()
		l := members(dir)
		a, err := l.Register(t.Context(), nettest.Worker("go"))
		if err != nil {
			t.Fatal(err)
		}
		return a, func() {
			if err := l.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	// crashed has the directory of a process that was killed: the files of one that lives, without its locks.
	crashed := func() {
		t.Helper()
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		dir = copied
	}
	first, end := enter()
	t.Cleanup(end)
	crashed()
	second, end := enter()
	t.Cleanup(end)
	if second.GUID() != first.GUID() || !second.Reused() {
		t.Errorf("%s came back as %s", first.GUID(), second.GUID())
	}
	if _, err := second.Describe(t.Context(), nettest.Worker("go", "c")); err != nil {
		t.Errorf("who comes back may say at once who it is: %v", err)
	}
	nettest.SendText(t, boss, second, "for you")
	if list, _, err := second.Wait(t.Context(), mail.Selection{}); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	crashed()
	loseRecords(t, r, "slot.>")
	third, end := enter()
	if third.GUID() != first.GUID() {
		t.Errorf("%s came back as %s", first.GUID(), third.GUID())
	}
	end() // its record says that it is free
	again, end := enter()
	t.Cleanup(end)
	if again.GUID() != first.GUID() {
		t.Errorf("%s came back as %s", first.GUID(), again.GUID())
	}
	crashed()
	loseRecords(t, r, ">") // also that of the holder, so that the secret proves nothing
	stranger, end := enter()
	defer end()
	if stranger.GUID() == first.GUID() {
		t.Error("an agent has the GUID of one that is in the registry, without proof")
	}
}

// loseRecords removes records of identities.
func loseRecords(t *testing.T, r *nettest.Hub, keys string) {
	t.Helper()
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return r.Bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	key := store.Config{}.WithDefaults().IdentityKey(keys)
	stream, err := b.JetStream().Stream(t.Context(), key.Stream)
	if err == nil {
		err = stream.Purge(t.Context(), jetstream.WithPurgeSubject(key.Subject))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// operator returns what a hub assigns identities with.
func operator(t *testing.T) func(registry.AdmissionRequest, func(string) registry.ConnectionState) (store.Admission, error) {
	t.Helper()
	r := nettest.NewHub(t)
	b, err := bus.Join(t.Context(), bus.Config{}, func(ctx context.Context) (bus.Grant, error) {
		return r.Bus.Grant(ctx, bus.GrantRequest{Access: bus.AccessNetwork})
	})
	if err == nil {
		err = r.Operator.Usable(t.Context()) // it has made the buckets
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	g := registry.New(store.New(store.Config{Logger: slog.New(slog.DiscardHandler)}.WithDefaults()))
	return func(a registry.AdmissionRequest, state func(string) registry.ConnectionState) (store.Admission, error) {
		return g.Assign(t.Context(), b, a, state)
	}
}

// Whoever crashes and comes back in whatever order, with whatever the hub and the computer still know: an agent is
// the former one of its handle, or a new one, and never one of another handle.
func TestAnAgentIsNeverOneOfAnotherHandle(t *testing.T) {
	t.Parallel()
	assign := operator(t)
	handles := []string{"builder", "reviewer", "tester"} // the tester is new
	n := 0
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {2, 1, 0}} {
		for _, known := range []registry.ConnectionState{registry.NeverConnected, registry.Disconnected} {
			for _, remembers := range []bool{true, false} {
				n++
				computer := filepath.Join(t.TempDir(), "agents")
				cfg := store.Config{StateDir: computer, ProjectPath: fmt.Sprintf("/shop-%d", n), Hostname: "h"}
				connected := map[string]bool{}
				start := func(handle string) (string, *registry.Remembered) {
					t.Helper()
					held, err := registry.Remember(t.Context(), cfg, "hub", registry.Registration{AgentType: "worker", Handle: handle})
					if err != nil {
						t.Fatal(err)
					}
					adm, err := assign(registry.AdmissionRequest{AgentType: "worker", ProjectPath: cfg.ProjectPath, Handle: handle, GUID: held.GUID, Secret: held.Secret},
						func(guid string) registry.ConnectionState {
							if connected[guid] {
								return registry.Connected
							}
							return known
						})
					if err == nil {
						err = held.Keep(adm, handle, "")
					}
					if err != nil {
						t.Fatal(err)
					}
					connected[adm.GUID] = true
					return adm.GUID, held
				}
				was := map[string]string{}
				for _, handle := range handles[:2] {
					guid, held := start(handle)
					defer held.Release()
					was[guid] = handle
				}
				clear(connected) // both are killed, and the hub with them where it knows nothing
				cfg.StateDir = filepath.Join(t.TempDir(), "agents")
				if remembers {
					if err := os.CopyFS(cfg.StateDir, os.DirFS(computer)); err != nil { // without the locks
						t.Fatal(err)
					}
				}
				for _, i := range order {
					guid, held := start(handles[i])
					defer held.Release()
					switch former := was[guid]; {
					case former != "" && former != handles[i]:
						t.Errorf("order %v, the hub knows %v, the computer %v: %s is the former %s", order, known, remembers, handles[i], former)
					case former == "" && i < 2 && (remembers || known == registry.Disconnected):
						t.Errorf("order %v, the hub knows %v, the computer %v: %s is another one", order, known, remembers, handles[i])
					}
				}
			}
		}
	}
}

// Agents that never come back do not use up the slots of a project on a computer: a new agent gets the slot of the one that is
// away the longest, and not its identity.
func TestSlotsOfAgentsThatAreAwayAreUsedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "agents")
	remember(t, dir, "hub", "worker", "first").Release()
	locks, err := filepath.Glob(filepath.Join(dir, "*.0.lock"))
	if err != nil || len(locks) != 1 {
		t.Fatal(locks, err)
	}
	base := strings.TrimSuffix(locks[0], ".0.lock")
	const slots = 64
	for i := range slots {
		file := fmt.Sprintf("%s.%d", base, i)
		err := errors.Join(os.WriteFile(file+".lock", nil, 0o600),
			os.WriteFile(file+".json", fmt.Appendf(nil, `{"guid":"7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b%02d","secret":"s","handle":"agent-%d"}`, i, i), 0o600))
		if err == nil && i == 40 {
			err = os.Chtimes(file+".json", time.Time{}, time.Now().Add(-time.Hour))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	fresh := remember(t, dir, "hub", "worker", "fresh")
	if fresh.GUID != "" {
		t.Errorf("the new agent is %s", fresh.GUID)
	}
	if err := fresh.Keep(store.Admission{GUID: "0b9f5a0c-3f62-4a6e-8d7e-5f2f3c1f7a42", Secret: "f"}, "fresh", ""); err != nil {
		t.Fatal(err)
	}
	if last := remember(t, dir, "hub", "worker", "agent-63"); last.GUID != "7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b63" {
		t.Errorf("an agent that comes back is %q", last.GUID)
	}
	if gone := remember(t, dir, "hub", "worker", "agent-40"); gone.GUID != "" {
		t.Errorf("the agent whose slot was given away is %q", gone.GUID)
	}
}

// The same on the hub, which has as many slots.
func TestRecordsOfAgentsThatAreAwayAreReplaced(t *testing.T) {
	t.Parallel()
	assign := operator(t)
	away := func(string) registry.ConnectionState { return registry.Disconnected }
	guids := map[string]bool{}
	request := registry.AdmissionRequest{AgentType: "worker", ProjectPath: "/shop"}
	var first store.Admission
	for i := range 65 {
		request.Handle = fmt.Sprintf("agent-%d", i)
		adm, err := assign(request, func(guid string) registry.ConnectionState {
			if i < 64 {
				return registry.Connected
			}
			return registry.Disconnected
		})
		if err != nil || guids[adm.GUID] {
			t.Fatalf("agent %d is %s: %v", i, adm.GUID, err)
		}
		guids[adm.GUID] = true
		if i == 0 {
			first = adm
		}
	}
	request.Handle, request.GUID, request.Secret = "agent-0", first.GUID, first.Secret
	if _, err := assign(request, away); err != nil {
		t.Errorf("the first one comes back: %v", err)
	}
}
