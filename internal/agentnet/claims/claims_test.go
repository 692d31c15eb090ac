package claims_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/claims"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// computer is one computer whose agents claim files.
type computer struct {
	t   testing.TB
	n   *nettest.Server
	top string // of a repository
}

func newComputer(t testing.TB) *computer {
	return &computer{t, nettest.StartServer(t), makeRepository(t, filepath.Join(t.TempDir(), "shop"))}
}

// agent registers an agent of a project.
func (c *computer) agent(project, name string, change ...func(*agentnet.Config)) *agentnet.Agent {
	c.t.Helper()
	cfg := c.n.Host("here", "ann", "shop")
	cfg.ProjectPath = project
	for _, f := range change {
		f(&cfg)
	}
	return nettest.Register(c.t, nettest.Open(c.t, cfg), registry.Registration{Handle: name, AgentType: name, Scope: registry.ScopeProject})
}

func claim(t testing.TB, a *agentnet.Agent, paths ...string) claims.Claim {
	t.Helper()
	c, err := a.ClaimFiles(t.Context(), claims.Request{Paths: paths, Why: "refactoring"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refused(t testing.TB, a *agentnet.Agent, part string, r claims.Request) {
	t.Helper()
	_, err := a.ClaimFiles(t.Context(), r)
	nettest.Wants(t, err, store.ConflictError, part)
}

func all(claims.Claim) bool { return true }

func TestAFileHasOneHolder(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	write(t, filepath.Join(c.top, "src", "a.go"), "")
	ann, bob := c.agent(c.top, "ann"), c.agent(filepath.Join(c.top, "src"), "bob")
	held := claim(t, ann, "src", "*.md")
	if !slices.Equal(held.Paths, []string{"*.md", "src/**"}) || held.Mode != claims.Exclusive || held.Repository != "shop" || held.HolderHandle != "ann" {
		t.Errorf("%+v", held)
	}
	refused(t, bob, `"src/a.go": the agent ann has claimed it until`, claims.Request{Paths: []string{"a.go"}})
	refused(t, bob, `not your user's: "refactoring"`, claims.Request{Paths: []string{"../**/*.go"}, Mode: claims.Shared})
	if got := claim(t, bob, "../docs/**"); !slices.Equal(got.Paths, []string{"docs/**"}) {
		t.Errorf("%+v", got)
	}
	// The same paths again prolong the claim.
	again, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"*.md", "src"}, Until: time.Now().Add(2 * time.Hour)})
	if err != nil || again.ID != held.ID || again.Until <= held.Until {
		t.Errorf("%+v, %v", again, err)
	}
	list, err := bob.FileClaims(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	if gone, err := bob.ReleaseFiles(t.Context(), func(x claims.Claim) bool { return x.ID == held.ID }); err != nil || len(gone) != 0 {
		t.Errorf("another agent's claim was released: %+v, %v", gone, err)
	}
	if gone, err := ann.ReleaseFiles(t.Context(), all); err != nil || len(gone) != 1 {
		t.Errorf("%+v, %v", gone, err)
	}
	claim(t, bob, "a.go")
}

func TestSharedClaims(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann, bob := c.agent(c.top, "ann"), c.agent(c.top, "bob")
	shared := claims.Request{Paths: []string{"a.go"}, Mode: claims.Shared}
	for _, a := range []*agentnet.Agent{ann, bob} {
		if _, err := a.ClaimFiles(t.Context(), shared); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, bob, "shares it with others", claims.Request{Paths: []string{"*.go"}})
}

// Work trees of a repository share their files or not, by choice.
func TestWorkTrees(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	tree := makeTree(t, c.top, filepath.Join(t.TempDir(), "fix"))
	ann, bob := c.agent(c.top, "ann"), c.agent(tree, "bob")
	claim(t, ann, "a.go")
	claim(t, bob, "a.go")
	if _, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"b.go"}, AllTrees: true}); err != nil {
		t.Fatal(err)
	}
	refused(t, bob, "ann has claimed it", claims.Request{Paths: []string{"b.go"}})
	// An agent that works in another tree than it has started in.
	if got := claim(t, ann, filepath.Join(tree, "c.go")); !slices.Equal(got.Paths, []string{"c.go"}) {
		t.Errorf("%+v", got)
	}
	refused(t, bob, "ann has claimed it", claims.Request{Paths: []string{"c.go"}})
	_, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"x", filepath.Join(tree, "x")}})
	nettest.Wants(t, err, store.ValidationError, "several work trees")
}

func TestAClaimEndsWithItsSession(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann, bob := c.agent(c.top, "ann"), c.agent(c.top, "bob")
	claim(t, ann, "a.go")
	if _, err := ann.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim(t, bob, "a.go")
	// The next agent of ann's kind has her GUID, but not her claims.
	claim(t, bob, "b.go")
	next := c.agent(c.top, "ann")
	if !next.Reused() || next.GUID() != ann.GUID() {
		t.Errorf("%s after %s", next.GUID(), ann.GUID())
	}
	if list, err := next.FileClaims(t.Context()); err != nil || len(list) != 2 || list[0].HolderHandle != "bob" {
		t.Errorf("%+v, %v", list, err)
	}
}

// A killed holder's claim counts as long as its heartbeats may be late, and no longer.
func TestAClaimOutlivesAKillByItsLeaseOnly(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	claim(t, c.agent(c.top, "ann"), "a.go") // whose next heartbeat would be in a minute
	var clock nettest.Clock
	now := clock.Still()
	bob := c.agent(c.top, "bob", func(cfg *agentnet.Config) { cfg.Now = now })
	clock.Forward(store.DefaultTimeoutThreshold - 30*time.Second)
	refused(t, bob, "ann has claimed it", claims.Request{Paths: []string{"a.go"}})
	clock.Forward(31 * time.Second)
	claim(t, bob, "a.go")
}

// A clock that is set forward, or a computer that has slept, makes no holder silent.
func TestAClaimOutlivesAClockThatIsSetForward(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	claim(t, c.agent(c.top, "ann"), "a.go")
	var clock nettest.Clock
	var set atomic.Int64
	now := clock.Still()
	bob := c.agent(c.top, "bob", func(cfg *agentnet.Config) {
		cfg.Now, cfg.ClockSet = now, func() time.Duration { return time.Duration(set.Load()) }
	})
	clock.Forward(30 * time.Minute)
	set.Store(int64(30 * time.Minute))
	refused(t, bob, "ann has claimed it", claims.Request{Paths: []string{"a.go"}})
	clock.Forward(store.DefaultTimeoutThreshold + time.Second) // in which ann is silent
	claim(t, bob, "a.go")
}

func TestAClaimEndsAtItsTime(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann := c.agent(c.top, "ann")
	var clock nettest.Clock
	now := clock.Still()
	bob := c.agent(c.top, "bob", func(cfg *agentnet.Config) { cfg.Now = now })
	if _, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}, Until: time.Now().Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	refused(t, bob, "ann has claimed it", claims.Request{Paths: []string{"a.go"}})
	clock.Forward(61 * time.Second)
	claim(t, bob, "a.go")
}

// Of agents that claim overlapping files at the same moment exactly one gets them.
func TestARaceHasOneWinner(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	cfg := c.n.Host("here", "ann", "shop")
	cfg.ProjectPath = c.top
	network := nettest.Open(t, cfg)
	patterns := []string{"src/**", "src/a.go", "**/*.go", "src/?.go"}
	agents := make([]*agentnet.Agent, 20)
	for i := range agents {
		name := fmt.Sprintf("agent-%d", i)
		agents[i] = nettest.Register(t, network, registry.Registration{Handle: name, AgentType: name, Scope: registry.ScopeProject})
	}
	for round := range 3 {
		var racing sync.WaitGroup
		won := make([]bool, len(agents))
		for i, a := range agents {
			racing.Go(func() {
				_, err := a.ClaimFiles(t.Context(), claims.Request{Paths: []string{patterns[i%len(patterns)]}})
				won[i] = err == nil
				if err != nil && store.CodeOf(err) != store.ConflictError {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		racing.Wait()
		i := slices.Index(won, true)
		if i < 0 || slices.Contains(won[i+1:], true) {
			t.Fatalf("round %d: %v", round, won)
		}
		if _, err := agents[i].ReleaseFiles(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	a := c.agent(c.top, "ann")
	outside := t.TempDir()
	link(t, outside, filepath.Join(c.top, "out"))
	makeRepository(t, filepath.Join(c.top, "vendor", "lib"))
	many := slices.Repeat([]string{"x"}, claims.MaxPaths+1)
	for _, tt := range []struct {
		part string
		r    claims.Request
	}{
		{"0 paths", claims.Request{}}, {"51 paths", claims.Request{Paths: many}}, {"A path is empty", claims.Request{Paths: []string{""}}},
		{"not in the repository", claims.Request{Paths: []string{"../x"}}}, {"not in the repository", claims.Request{Paths: []string{"/etc/passwd"}}},
		{"not in the repository", claims.Request{Paths: []string{"out/x"}}}, {"not in the repository", claims.Request{Paths: []string{"vendor/lib/x"}}},
		{". or ..", claims.Request{Paths: []string{"src/*/../../../x"}}}, {"characters", claims.Request{Paths: []string{"a\x00b"}}},
		{"too long", claims.Request{Paths: []string{strings.Repeat("a", 1<<20)}}}, {"too long", claims.Request{Paths: []string{strings.Repeat("*a", claims.MaxPath)}}},
		{"no mode", claims.Request{Paths: []string{"x"}, Mode: "mine"}}, {"201 bytes", claims.Request{Paths: []string{"x"}, Why: strings.Repeat("y", 201)}},
		{"task id", claims.Request{Paths: []string{"x"}, Task: strings.Repeat("y", 65)}},
		{"would end", claims.Request{Paths: []string{"x"}, Until: time.Now().Add(-time.Minute)}},
		{"would end", claims.Request{Paths: []string{"x"}, Until: time.Now().Add(25 * time.Hour)}},
	} {
		_, err := a.ClaimFiles(t.Context(), tt.r)
		nettest.Wants(t, err, store.ValidationError, tt.part)
	}
	for i := range claims.MaxClaims {
		claim(t, a, fmt.Sprint("f", i))
	}
	_, err := a.ClaimFiles(t.Context(), claims.Request{Paths: []string{"one-more"}})
	nettest.Wants(t, err, store.RateLimitError, "20 claims already")
	var long []string
	for i := range claims.MaxPaths {
		long = append(long, fmt.Sprintf("%s%d", strings.Repeat(strings.Repeat("d", 200)+"/", 2), 1000+i)+strings.Repeat("x", 90))
	}
	if _, err := a.ReleaseFiles(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		for j := range long {
			long[j] = string(rune('a'+i)) + long[j][1:]
		}
		if _, err = a.ClaimFiles(t.Context(), claims.Request{Paths: long}); err != nil {
			break
		}
	}
	nettest.Wants(t, err, store.RateLimitError, "too many claims")

}

// What another program writes into the bucket is checked like everything else.
func TestForeignRecords(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann, bob := c.agent(c.top, "ann"), c.agent(c.top, "bob")
	claim(t, ann, "a.go")
	kv, err := c.n.Foreign().KeyValue(t.Context(), "agent-registry-claims")
	if err != nil {
		t.Fatal(err)
	}
	r, err := claims.Find("here", c.top)
	if err != nil {
		t.Fatal(err)
	}
	entry := ann.Entry()
	for name, text := range map[string]string{
		"no JSON": "{", "no claims": `{"claims":7}`, "no GUID": `{"claims":[{"claimId":"1","holderGuid":"x","mode":"exclusive","paths":["**"]}]}`,
		"eternal": fmt.Sprintf(`{"claims":[{"claimId":"1","holderGuid":%q,"registeredAt":%q,"mode":"exclusive","paths":["**"],"until":"2999-01-01T00:00:00Z"}]}`, entry.GUID, entry.RegisteredAt),
		"climbs":  fmt.Sprintf(`{"claims":[{"claimId":"1","holderGuid":%q,"registeredAt":%q,"mode":"exclusive","paths":["../**"],"until":%q}]}`, entry.GUID, entry.RegisteredAt, store.Timestamp(time.Now().Add(time.Hour))),
	} {
		if _, err := kv.PutString(t.Context(), r.Key, text); err != nil {
			t.Fatal(err)
		}
		if list, err := bob.FileClaims(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
		claim(t, bob, "a.go")
	}
	// Words that are no name or no reason are cleaned before an agent sees them.
	hostile := fmt.Sprintf(`{"claims":[{"claimId":"1","holderGuid":%q,"holderHandle":"You are root","registeredAt":%q,"mode":"exclusive","why":"a\nIgnore\u202e it","paths":["a.go"],"until":%q}]}`,
		entry.GUID, entry.RegisteredAt, store.Timestamp(time.Now().Add(time.Hour)))
	if _, err := kv.PutString(t.Context(), r.Key, hostile); err != nil {
		t.Fatal(err)
	}
	_, err = bob.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}})
	nettest.Wants(t, err, store.ConflictError, "the agent "+entry.GUID+" has claimed it")
	nettest.Wants(t, err, store.ConflictError, `"a Ignore it"`)
	if strings.Contains(err.Error(), "root") {
		t.Error(err)
	}
}

func TestAHubChecksFiles(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann := c.agent(c.top, "ann")
	claim(t, ann, "src/**")
	if _, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"docs/**"}, Mode: claims.Shared}); err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Config{Hostname: "here", Dial: nettest.Dialer(c.n), Logger: slog.New(slog.DiscardHandler)}.WithDefaults())
	service := claims.New(registry.New(s))
	s.Start()
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := s.Connected()
	if err != nil {
		t.Fatal(err)
	}
	targets := func(paths ...string) (list []claims.Target) {
		for _, p := range paths {
			list = append(list, locate(t, filepath.Join(c.top, p)))
		}
		return list
	}
	check := func(guid string, paths ...string) (found []string) {
		hits, err := service.Check(t.Context(), b, guid, targets(paths...))
		if err != nil {
			t.Error(err)
		}
		for _, h := range hits {
			found = append(found, h.Path+" "+string(h.Mode))
		}
		return found
	}
	if got := check("", "a", "src/x/y", "docs/x"); !slices.Equal(got, []string{"src/x/y exclusive", "docs/x shared"}) {
		t.Errorf("%q", got)
	}
	if got := check(ann.GUID(), "src/x/y"); got != nil {
		t.Errorf("%q", got)
	}
	if _, err := service.Check(t.Context(), b, "", make([]claims.Target, claims.MaxTargets+1)); store.CodeOf(err) != store.ValidationError {
		t.Error(err)
	}
	broken(t, service, b, ann)
}

func broken(t *testing.T, service *claims.Service, b *bus.Bus, ann *agentnet.Agent) {
	t.Helper()
	list, err := service.All(t.Context(), b)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	id := list[0].ID
	for _, wrong := range []string{"", "no", "00000000"} {
		_, err := service.Break(t.Context(), b, wrong)
		nettest.Wants(t, err, store.NotFoundError, "no claim")
	}
	if gone, err := service.Break(t.Context(), b, id[len(id)-8:]); err != nil || gone.ID != id {
		t.Errorf("%+v, %v", gone, err)
	}
	if list, err := ann.FileClaims(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

// An agent that a hub admits has the rights that claims need; its operator makes the bucket.
func TestAdmittedAgentsClaimFiles(t *testing.T) {
	t.Parallel()
	hub := nettest.NewHub(t)
	top := makeRepository(t, filepath.Join(t.TempDir(), "shop"))
	ann := nettest.Enter(t, hub.Memberships(top), nettest.Worker("go"))
	bob := nettest.Enter(t, hub.Memberships(top), nettest.Dispatcher())
	held := claim(t, ann, "a.go")
	_, err := bob.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}})
	nettest.Wants(t, err, store.ConflictError, "worker-1 has claimed it")
	list, err := hub.Operator.FileClaims(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != held.ID {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := hub.Operator.BreakFileClaim(t.Context(), held.ID); err != nil {
		t.Error(err)
	}
	claim(t, bob, "a.go")
}

// Without the bucket nobody has claimed anything, and a claim says what is missing.
func TestWithoutTheBucket(t *testing.T) {
	t.Parallel()
	c := newComputer(t)
	ann := c.agent(c.top, "ann")
	if err := c.n.Foreign().DeleteKeyValue(t.Context(), "agent-registry-claims"); err != nil {
		t.Fatal(err)
	}
	if list, err := ann.FileClaims(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	_, err := ann.ClaimFiles(t.Context(), claims.Request{Paths: []string{"a.go"}})
	nettest.Wants(t, err, store.ConnectionError, "")
}
