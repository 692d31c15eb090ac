package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/federation/peers"
	"github.com/parleyhub/parley/internal/testbed"
)

var (
	cutTime = flag.Duration("cut-for", 4*time.Second, "how long links are cut and processes are killed between two computers")
	cutSeed = flag.Uint64("cut-seed", 1, "the order of those faults")
)

// Two computers, each with a hub and agents, and a NATS server are in network namespaces. The hubs are paired, over UDP and over the server; the agents
// reach each other by the server. Links are cut, or lose what goes in one direction, and hubs, agents and the server are killed, while tasks go to
// the other hub, and mail, receipts and work to the other computer's agents. The checks are those of the campaign.
func TestCutLinksBreakNoPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("it kills hubs")
	}
	if !testbed.Inside(t) {
		return
	}
	l := newLinked(t, *cutSeed)
	ctx, cancel := context.WithTimeout(t.Context(), *cutTime)
	defer cancel()
	defer l.leave()
	if err := l.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() { l.run(ctx) })
	counts := l.inject(t, ctx)
	wait.Wait()
	found := texts{}
	stuck, err := l.awaitTasks(t.Context(), found)
	if err := errors.Join(err, l.collectOfAgents(t.Context(), found)); err != nil {
		t.Fatal(err)
	}
	r := judge(l.all, found)
	r.faults = counts
	for _, b := range slices.Concat(stuck, r.broken, l.doneTwice(t.Context())) {
		t.Error(b)
	}
	t.Logf("seed %d: %v", *cutSeed, r)
	if t.Failed() {
		t.Logf("repeat it with: go test -run '^%s$' ./tools/faults -cut-for %v -cut-seed %d", t.Name(), *cutTime, *cutSeed)
	}
}

// linked is two computers and their agents: senders on the first one, the reader on the second, a worker on each.
type linked struct {
	*traffic
	lab    *testbed.Lab
	random *rand.Rand
	sites  [2]*site
	server *natsProcess
}

// site is a computer with a hub.
type site struct {
	*hub
	host *testbed.Host
	name string
}

// answering is the agent of each hub that is given tasks by the other one.
const answering = "parrot"

func newLinked(t *testing.T, seed uint64) *linked {
	l := &linked{lab: testbed.NewLab(t), random: rand.New(rand.NewPCG(seed, 0))}
	l.server = &natsProcess{host: l.lab.Host(), dir: t.TempDir()}
	if err := l.server.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.server.kill)
	for i, name := range []string{"here", "there"} {
		l.sites[i] = newSite(t, l.lab.Host(), name)
	}
	first := netip.AddrPortFrom(l.sites[0].host.Addr(), 49737).String()
	l.sites[0].configure(t, l.server, "public: '"+first+"'")
	l.sites[1].configure(t, l.server, "")
	l.sites[0].pair(t, l.sites[1], "")
	l.sites[1].pair(t, l.sites[0], first)
	for _, s := range l.sites {
		t.Cleanup(s.kill)
		if err := s.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c := campaign{seed: seed, clients: 1}
	l.traffic = newTraffic(t.Context(), l.sites[0].hub, c, &history{})
	l.reader.h = l.sites[1].hub
	l.workers = append(l.workers, &player{h: l.sites[1].hub, handle: name("worker", 1), all: l.all})
	l.lockers = nil // claims of files are for one computer
	return l
}

func newSite(t *testing.T, host *testbed.Host, name string) *site {
	t.Helper()
	h, err := newHub(t.Context(), t.TempDir(), hubProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{h, host, name}
	h.env, h.public = settings(), true
	h.launch = s.run
	h.web.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = host.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}}
	t.Cleanup(h.web.CloseIdleConnections)
	return s
}

// run starts a program on the site's computer, which has a name of its own.
func (s *site) run(cmd *exec.Cmd) error {
	return s.host.Do(func() error {
		err := unix.Unshare(unix.CLONE_NEWUTS)
		if err == nil {
			err = unix.Sethostname([]byte(s.name))
		}
		if err == nil {
			err = cmd.Start()
		}
		return err
	})
}

const siteYAML = `version: 1
peers: {enabled: true, nats: {url: '%s'}, hyperswarm: {%s}}
agents:
  claude-code: {disabled: true}
  gemini: {disabled: true}
  codex: {disabled: true}
  vibe: {disabled: true}
  parrot: {driver: exec, command: cat}
`

const networkJSON = `{"crossComputer": {"enabled": true, "acknowledgment": "I understand the security implications", "natsClusterUrls": ["%s"], "tlsRequired": false}}`

func (s *site) configure(t *testing.T, at *natsProcess, settings string) {
	t.Helper()
	for name, text := range map[string]string{
		"data/config.yaml":      fmt.Sprintf(siteYAML, at.url(), settings),
		".nats-mcp/config.json": fmt.Sprintf(networkJSON, at.url()),
		"project/note":          "",
	} {
		path := filepath.Join(s.home, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *site) pair(t *testing.T, other *site, address string) {
	t.Helper()
	pair, err := identity.Load(peers.KeyPath(filepath.Join(other.home, "data")))
	if err != nil {
		t.Fatal(err)
	}
	list, err := identity.OpenAllowList(peers.AllowPath(filepath.Join(s.home, "data")))
	if err == nil {
		err = list.Add(identity.Entry{Key: pair.Public(), Name: other.name, Address: address})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// natsProcess is a NATS server in a process of its own.
type natsProcess struct {
	host    *testbed.Host
	dir     string
	process *exec.Cmd
}

func (n *natsProcess) url() string {
	return fmt.Sprintf("nats://%s", netip.AddrPortFrom(n.host.Addr(), natsPort))
}

func (n *natsProcess) start() error {
	n.process = exec.Command(os.Args[0])
	n.process.Env = append(os.Environ(), serverVariable+"="+n.host.Addr().String(), serverVariable+"_DIR="+n.dir)
	return n.host.Start(n.process)
}

func (n *natsProcess) kill() {
	_ = n.process.Process.Kill() // it runs
	_ = n.process.Wait()         // it was killed
}

// run runs the clients until ctx ends.
func (l *linked) run(ctx context.Context) {
	var wait sync.WaitGroup
	wait.Go(func() { l.send(ctx, 0) })
	wait.Go(func() { l.read(ctx) })
	for i, p := range l.workers {
		wait.Go(func() { l.work(ctx, p, l.traffic.random("worker", i)) })
	}
	for i, s := range l.sites {
		other := l.sites[1-i]
		wait.Go(func() {
			perform(ctx, s.asker(), 0, 1<<30, l.all, func(call context.Context, text string) error {
				_, err := giveTask(call, s.hub, other.name+"."+answering, s.asker(), text, false)
				if err != nil && !errors.Is(err, errNotSent) { // its outcome is not known: once more, with the same key
					_, err = giveTask(call, s.hub, other.name+"."+answering, s.asker(), text, false)
				}
				pause(ctx, 20*time.Millisecond)
				return err
			})
		})
	}
	wait.Wait()
}

// asker is who gives tasks at a site.
func (s *site) asker() string { return "tasks-" + s.name }

// awaitTasks waits until all tasks that a hub has accepted have ended, which were given to the other hub, and adds what was answered. Of one that
// failed because a hub was killed nobody knows what has become: its outcome is unknown. It returns those that did not end.
func (l *linked) awaitTasks(ctx context.Context, found texts) (stuck []string, err error) {
	for _, s := range l.sites {
		for late := time.Now().Add(drainTime); ; {
			ends, err := endsOf(ctx, s.hub, s.asker())
			if err != nil {
				return nil, err
			}
			if late := time.Now().After(late); late || !slices.ContainsFunc(ends, func(e end) bool { return !e.ended() }) {
				found[s.asker()] = l.judgeTasks(ends, s.asker())
				for _, e := range ends {
					if !e.ended() {
						stuck = append(stuck, fmt.Sprintf("stuck: %q is %s (%s) %v after the last fault", e.prompt, e.state, e.answer, drainTime))
					}
				}
				break
			}
			pause(ctx, 100*time.Millisecond)
		}
	}
	return stuck, nil
}

// hubStopped is how a task fails whose hub, or whose agent's hub, was killed.
const hubStopped = "the hub stopped while the task was under way; send the message again"

// judgeTasks returns the answers of a sender's tasks, and takes back what was acknowledged of those that failed because a hub was killed.
func (l *linked) judgeTasks(ends []end, sender string) (answers []string) {
	stopped := map[string]bool{}
	for _, e := range ends {
		if e.state == "completed" {
			answers = append(answers, e.answer)
		}
		stopped[e.prompt] = e.state == "failed" && e.answer == hubStopped
	}
	for i, o := range l.all.ops { // nobody sends any more
		if o.sender == sender && stopped[o.text()] {
			l.all.ops[i].acknowledged = false
		}
	}
	return answers
}

// doneTwice finds tasks that the other hub has done more than once.
func (l *linked) doneTwice(ctx context.Context) (broken []string) {
	for _, s := range l.sites {
		answers, err := tasksOf(ctx, s.hub, "")
		if err != nil {
			return []string{err.Error()}
		}
		times := map[string]int{}
		for _, text := range answers {
			if times[text]++; times[text] == 2 {
				broken = append(broken, fmt.Sprintf("twice: %s has done %q twice", s.name, text))
			}
		}
	}
	return broken
}

// inject injects faults until ctx ends.
func (l *linked) inject(t *testing.T, ctx context.Context) faultCounts {
	t.Helper()
	hosts := []*testbed.Host{l.sites[0].host, l.sites[1].host, l.server.host}
	away := func(heal func()) {
		length := time.Duration(100+l.random.IntN(4000)) * time.Millisecond
		if l.random.IntN(10) == 0 {
			length *= 8 // longer than what notices that a peer is silent
		}
		pause(ctx, length)
		heal()
	}
	lose := func(sent bool) {
		h := hosts[l.random.IntN(len(hosts))]
		l.lab.Lose(h, sent)
		away(func() { l.lab.Heal(h) })
	}
	kinds := []fault{
		{name: "cuts", weight: 3, do: func(context.Context, time.Duration) error {
			h := hosts[l.random.IntN(len(hosts))]
			l.lab.Unplug(h)
			away(func() { l.lab.Plug(h) })
			return nil
		}},
		{name: "losses of what is sent", weight: 3, do: func(context.Context, time.Duration) error { lose(true); return nil }},
		{name: "losses of what is received", weight: 3, do: func(context.Context, time.Duration) error { lose(false); return nil }},
		{name: "kills", weight: 2, do: func(ctx context.Context, _ time.Duration) error {
			s := l.sites[l.random.IntN(2)]
			s.kill()
			return s.start(ctx)
		}},
		{name: "kills of agents", weight: 2, do: func(context.Context, time.Duration) error {
			players := l.players()
			players[l.random.IntN(len(players))].kill()
			return nil
		}},
		{name: "kills of the server", weight: 1, do: func(context.Context, time.Duration) error {
			l.server.kill()
			return l.server.start()
		}},
	}
	var drawn []fault
	for _, f := range kinds {
		drawn = append(drawn, slices.Repeat([]fault{f}, f.weight)...)
	}
	counts := faultCounts{}
	for pause(ctx, time.Duration(200+l.random.IntN(1500))*time.Millisecond) {
		f := drawn[l.random.IntN(len(drawn))]
		counts[f.name]++
		begin := l.all.now()
		if err := f.do(context.WithoutCancel(ctx), 0); err != nil {
			t.Errorf("after %s: %v", f.name, err)
			return counts
		}
		l.all.note(event{Client: "faults", Op: opFault, Text: f.name, Begin: begin, End: l.all.now()})
	}
	return counts
}
