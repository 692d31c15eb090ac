package chat_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/chat"
	"github.com/parleyhub/parley/internal/testbed"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// sends is the number of messages that each kill test sends; `make soak` sends ten thousand.
var sends = flag.Int("chat.sends", 1000, "messages that each kill test sends")

// killSeed repeats a run with the same random choices.
var killSeed = flag.Uint64("chat.seed", 0, "seed of the kill tests; 0 takes a new one")

// killRounds returns how many kills a test has.
func killRounds() int { return max(6, *sends/250) }

const (
	killSenders = 4
	// killQueue is how many messages a sender queues during an outage: a realistic number for agents,
	// and less than the queue can store.
	killQueue = 100
)

// childRole is the environment variable that makes the test binary a sender process.
const childRole = "PARLEY_CHAT_TEST_CHILD"

func beChild(role string) int {
	switch role {
	case "sender":
		return beSender(os.Args[1], os.Args[2], os.Args[3])
	}
	return 2
}

// beSender sends until it is killed and prints which messages were acknowledged.
func beSender(where, name, count string) int {
	n, err := strconv.Atoi(count)
	if err != nil {
		return 2
	}
	dial := stockDial(where)
	if filepath.IsAbs(where) {
		dial = hubDialFor(where, "kill")
	}
	s := chat.Open(killConfig(dial))
	for changed := s.Changed(); !s.Status().Connected; changed = s.Changed() {
		<-changed
	}
	for i := range n {
		r, err := s.Send(context.Background(), name, "c", strconv.Itoa(i))
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
			return 1
		case r.Queued:
			fmt.Println("queued", i)
		default:
			fmt.Println("stored", i)
		}
	}
	lost, err := s.Close(context.Background())
	fmt.Println("closed", lost, err)
	return 0
}

func stockDial(url string) func(context.Context) (*bus.Bus, error) {
	return func(ctx context.Context) (*bus.Bus, error) {
		return bus.Open(ctx, bus.Config{URL: bus.Secret(url), NoEcho: true})
	}
}

// hubDialFor joins the hub of a directory. It starts the hub if it is not running.
func hubDialFor(dir, namespace string) func(context.Context) (*bus.Bus, error) {
	return nettest.HubProcess{Dir: dir}.Dial(bus.AccessProject, namespace)
}

func killConfig(dial func(context.Context) (*bus.Bus, error)) chat.Config {
	return chat.Config{
		Namespace: "kill", Dial: dial, Logger: slog.New(slog.DiscardHandler),
		Channels: []chat.Channel{{Name: "c", MaxMessages: 1 << 20, MaxBytes: 256 << 20, MaxAge: 24 * time.Hour}},
	}
}

// A victim is a server process that is killed and restarted.
type victim struct {
	dial func(context.Context) (*bus.Bus, error)
	kill func(t testing.TB) bool // false if it was just restarting
	at   string                  // the address for other processes
}

// newHub is a hub in a process of its own, which its users start again after it was killed.
func newHub(t testing.TB) victim {
	t.Helper()
	hub := nettest.NewProcess(t)
	return victim{dial: hubDialFor(hub.Dir, "kill"), at: hub.Dir, kill: func(testing.TB) bool { return hub.Kill() }}
}

// newStock is a stock nats-server in a process of its own.
func newStock(t testing.TB) victim {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "nats-server")
	if out, err := exec.Command("go", "build", "-o", exe, "github.com/nats-io/nats-server/v2").CombinedOutput(); err != nil {
		t.Fatalf("no stock nats-server: %v: %s", err, out)
	}
	port := testbed.FreePorts(t, 1)[0]
	dir := t.TempDir()
	var cmd *exec.Cmd
	start := func() {
		cmd = exec.Command(exe, "-js", "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-sd", dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	end := func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // killed
	}
	start()
	t.Cleanup(func() { end() })
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	return victim{dial: stockDial(url), at: url, kill: func(testing.TB) bool { end(); start(); return true }}
}

func forEachVictim(t *testing.T, test func(t *testing.T, v victim)) {
	for name, make := range map[string]func(testing.TB) victim{"hub": newHub, "stock server": newStock} {
		t.Run(name, func(t *testing.T) { test(t, make(t)) })
	}
}

func killRand(t *testing.T) *rand.Rand {
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-chat.sends=%d -chat.seed=%d", *sends, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// moments returns at which counts of sends to kill, in ascending order.
func moments(r *rand.Rand, n, most int) []int {
	at := make([]int, n)
	for i := range at {
		at[i] = i*most/n + r.IntN(most/n)
	}
	return at
}

// Killing the server at any moment loses no message, stores none twice, and keeps each sender's
// order. REQ-REL-001, REQ-REL-003, REQ-REL-007.
func TestAKilledServerLosesAndRepeatsNothing(t *testing.T) {
	forEachVictim(t, func(t *testing.T, v victim) {
		r := killRand(t)
		perSender := *sends / killSenders
		var begun atomic.Int64
		progress := make(chan struct{}, killSenders*perSender)
		kills := 0
		var all sync.WaitGroup
		for i := range killSenders {
			all.Go(func() {
				s := chat.Open(killConfig(v.dial))
				sendAll(t, s, fmt.Sprintf("sender-%d", i), perSender, func() { begun.Add(1); progress <- struct{}{} })
				// A busy server may not answer the end in time; everything was stored before.
				if lost, err := s.Close(t.Context()); lost != 0 || err != nil && bus.CodeOf(err) != bus.CodeTimeout && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("sender %d: %d messages are lost: %v", i, lost, err)
				}
			})
		}
		for _, at := range moments(r, killRounds(), killSenders*perSender) {
			for int(begun.Load()) < at {
				<-progress
			}
			if v.kill(t) {
				kills++
			}
		}
		all.Wait()
		if kills == 0 {
			t.Error("nothing was killed")
		}
		t.Logf("killed %d times", kills)
		found := readBack(t, v)
		for i := range killSenders {
			name := fmt.Sprintf("sender-%d", i)
			checkOrder(t, name, found[name])
			if got := len(found[name]); got != perSender {
				t.Errorf("%s: %d of %d messages are stored", name, got, perSender)
			}
		}
	})
}

// sendAll sends count messages as name. During an outage it pauses when killQueue messages are
// queued.
func sendAll(t *testing.T, s *chat.Space, name string, count int, begin func()) {
	for i := range count {
		begin()
		if _, err := s.Send(t.Context(), name, "c", strconv.Itoa(i)); err != nil {
			t.Errorf("%s: message %d: %v", name, i, err)
			return
		}
		for s.Status().Queued >= killQueue {
			select {
			case <-s.Changed():
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// Killing a sender at any moment loses no message that was acknowledged to it.
func TestAKilledSenderLosesNothingThatWasAcknowledged(t *testing.T) {
	forEachVictim(t, func(t *testing.T, v victim) {
		r := killRand(t)
		up, err := v.dial(t.Context())
		for err != nil { // the stock server may still be starting
			up, err = v.dial(t.Context())
		}
		if err := up.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		perRound := *sends / killRounds()
		acked := map[string][]int{}
		for round := range killRounds() {
			name := fmt.Sprintf("sender-%d", round)
			acked[name] = killSender(t, v.at, name, 1+r.IntN(perRound))
		}
		found := readBack(t, v)
		for name, numbers := range acked {
			checkOrder(t, name, found[name])
			there := map[int]bool{}
			for _, i := range found[name] {
				there[i] = true
			}
			for _, i := range numbers {
				if !there[i] {
					t.Errorf("%s: message %d was acknowledged but is not stored", name, i)
				}
			}
		}
	})
}

// killSender runs a process that sends, and kills it after so many acknowledged messages. It
// returns the acknowledged messages.
func killSender(t *testing.T, where, name string, after int) (acked []int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, where, name, strconv.Itoa(*sends+after))
	cmd.Env = append(os.Environ(), childRole+"=sender")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	killed := false
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // a line that the kill cut off is ignored
		}
		what, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i, err := strconv.Atoi(number); err == nil && what == "stored" {
			acked = append(acked, i)
		}
		if len(acked) >= after && !killed {
			killed = true
			_ = cmd.Process.Kill() // it may have ended already
		}
	}
	_ = cmd.Wait() // killed
	if len(acked) < after {
		t.Errorf("%s ended by itself after %d messages", name, len(acked))
	}
	return acked
}

// readBack reads the whole channel with the package's own API. It returns the numbers of each
// sender's messages in stored order.
func readBack(t *testing.T, v victim) map[string][]int {
	t.Helper()
	s := ready(t, chat.Open(killConfig(v.dial)))
	defer func() {
		if _, err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	tips, err := s.Tips(t.Context(), []string{"c"})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]int{}
	for cursor := (chat.Cursor{"c": 0}); cursor["c"] < tips["c"]; {
		news, err := s.Wait(t.Context(), cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range news.Messages["c"] {
			i, err := strconv.Atoi(m.Text)
			if err != nil {
				t.Fatal(err)
			}
			found[m.Handle] = append(found[m.Handle], i)
		}
		cursor = news.Cursor
	}
	return found
}

// checkOrder checks that the numbers increase: no message is stored twice or out of order.
func checkOrder(t *testing.T, name string, numbers []int) {
	t.Helper()
	for i := 1; i < len(numbers); i++ {
		if numbers[i] <= numbers[i-1] {
			t.Errorf("%s: message %d comes after %d", name, numbers[i], numbers[i-1])
		}
	}
}
