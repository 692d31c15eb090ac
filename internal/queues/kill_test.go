package queues_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

var kills = flag.Int("kills", 12, "how often the test kills the hub")

// rank orders the states of a task of a queue: it never goes back.
func rank(state string) int {
	switch state {
	case "submitted":
		return 0
	case "working":
		return 1
	}
	return 2
}

// ledger is what the hub has said of the queue's tasks.
type ledger struct {
	t     *testing.T
	hub   nettest.HubProcess
	state map[string]string // by task
	of    map[string]string // the task of an item
}

// read reads all tasks. It reports false if the hub does not answer.
func (l *ledger) read() (all []dialect.Task, ok bool) {
	c, err := l.hub.Client(l.t.Context())
	if err != nil {
		return nil, false
	}
	defer func() { _ = c.Close() }() // the hub may have been killed
	page, err := c.Tasks(l.t.Context(), dialect.TasksListParams{Limit: 1000})
	if err != nil {
		return nil, false
	}
	for _, task := range page.Tasks {
		if task.Metadata["parley.agent"] != "queue.go" {
			continue
		}
		id, state := string(task.ID), string(task.Status.State)
		if before, known := l.state[id]; known && (rank(state) < rank(before) || rank(before) == 2 && state != before) {
			l.t.Errorf("the task %s was %s and is %s", id, before, state)
		}
		l.state[id] = state
		item := itemIn(task.Metadata)
		if have, known := l.of[item]; known && have != id {
			l.t.Errorf("the item %s has the tasks %s and %s", item, have, id)
		}
		l.of[item] = id
	}
	return page.Tasks, true
}

func itemIn(metadata map[string]any) string {
	m, _ := metadata["workItem"].(map[string]any)
	return fmt.Sprint(m["taskId"])
}

// A hub that is killed at any time loses no item, gives none two tasks, shows no task going back, and has each done once.
func TestNoItemIsLostByKills(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes")
	}
	t.Parallel()
	h := nettest.NewProcess(t)
	config := "workers:\n  - {agent: echo, capability: go, count: 2}\n"
	if err := os.WriteFile(filepath.Join(h.Dir, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Start(t)
	log := slog.New(slog.DiscardHandler)
	members := agentnet.NewMemberships(agentnet.Config{BusConfig: store.Config{ProjectPath: "/shop", ProjectID: "0123456789abcdef", Logger: log}},
		h.Enter(dialect.NetworkJoinParams{}))
	t.Cleanup(func() {
		if err := members.Close(context.Background()); err != nil {
			t.Log(err)
		}
	})
	boss := nettest.Enter(t, members, nettest.Dispatcher())
	l := &ledger{t: t, hub: h, state: map[string]string{}, of: map[string]string{}}
	var items []string
	completed := func(item string) {
		t.Helper()
		wait.Eventually(t, item+" is completed", func() bool {
			s, err := boss.Item(t.Context(), item, false)
			if err == nil && s.State == work.Dead {
				t.Fatalf("%s is a dead letter: %+v", item, s)
			}
			return err == nil && s.State == work.Completed
		})
	}
	for round := range *kills {
		if round%2 == 0 { // each kill of a worker is an attempt, and the third one the last
			for _, item := range items {
				completed(item)
			}
		}
		for i := range 3 {
			item := nettest.Item(fmt.Sprintf("item-%d-%d", round, i), "go")
			wait.Eventually(t, "the item is submitted", func() bool {
				_, err := boss.Submit(t.Context(), item)
				return err == nil
			})
			items = append(items, item.TaskID)
		}
		wait.Pause(t.Context(), time.Duration(rand.IntN(120))*time.Millisecond)
		l.read()
		if !h.Kill() {
			t.Log("there was no hub to kill")
		}
		h.Start(t)
		l.read()
	}
	for _, item := range items {
		completed(item)
	}
	var all []dialect.Task
	wait.Eventually(t, "all tasks of the queue have ended", func() bool {
		tasks, ok := l.read()
		all = tasks
		for _, item := range items {
			if l.state[l.of[item]] != "completed" {
				return false
			}
		}
		return ok
	})
	done := map[string]int{}
	for _, task := range all {
		if task.Metadata["parley.agent"] == "echo" && task.Status.State == "completed" {
			done[itemIn(task.Metadata)]++
		}
	}
	for _, item := range items {
		if done[item] != 1 {
			t.Errorf("%s was done %d times", item, done[item])
		}
	}
}
