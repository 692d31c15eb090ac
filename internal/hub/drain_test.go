package hub_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/hub"
)

// While another program waits to replace the hub, messages are stored and their turns held; the next hub begins them, each once.
func TestHeldTasksAreDoneByTheNextHub(t *testing.T) {
	dir := t.TempDir()
	open := func() (*hub.Hub, func() error) {
		b, err := bus.Open(t.Context(), bus.Config{DataDir: dir, Durability: bus.DurabilityFast})
		if err != nil {
			t.Fatal(err)
		}
		h, err := hub.New(t.Context(), hub.Config{Bus: b, Agents: []hub.Agent{{Definition: definition("actor"), Runner: actor()}}})
		if err != nil {
			t.Fatal(err)
		}
		return h, func() error { return errors.Join(h.Close(context.Background()), b.Close(context.Background())) }
	}
	h, stop := open()
	asked, err := h.SendAndWait(t.Context(), request("actor", "input"))
	if err != nil || asked.Status.State != a2a.TaskStateInputRequired {
		t.Fatalf("%+v, %v", asked, err)
	}
	working, err := h.Send(t.Context(), request("actor", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	if busy := h.Drain(); busy != 1 {
		t.Fatalf("%d tasks would be interrupted, want 1", busy)
	}
	held, err := h.Start(t.Context(), request("actor", "say:later"))
	if err != nil {
		t.Fatal(err)
	}
	canceled, err := h.Send(t.Context(), request("actor", "say:never"))
	if err != nil {
		t.Fatal(err)
	}
	answer := request("actor", "say:answered")
	answer.Message.TaskID = asked.ID
	if _, err := h.Send(t.Context(), answer); err != nil {
		t.Fatal(err)
	}
	child := request("actor", "say:child")
	child.Delegation = &hub.Delegation{By: "actor", Task: working.ID, Tasks: []a2a.TaskID{working.ID}}
	if task, err := h.SendAndWait(t.Context(), child); err != nil || task.Status.State != a2a.TaskStateCompleted {
		t.Errorf("a running task may wait for a delegated one, which is not held: %+v, %v", task, err)
	}
	if task, err := h.Cancel(t.Context(), canceled.ID); err != nil || task.Status.State != a2a.TaskStateCanceled {
		t.Errorf("%+v, %v", task, err)
	}
	if busy := h.Drain(); busy != 1 || !taskIs(h, held.TaskID(), a2a.TaskStateSubmitted)() {
		t.Errorf("%d tasks would be interrupted, want 1 and one held", busy)
	}
	if _, err := h.Cancel(t.Context(), working.ID); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the hub is idle", func() bool { return h.Drain() == 0 })
	waiting := make(chan error, 1)
	go func() {
		_, err := held.Wait(context.Background())
		waiting <- err
	}()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; hub.CodeOf(err) != hub.CodeUnavailable {
		t.Errorf("who waited for the task: %v", err)
	}

	h, stop = open()
	for id, want := range map[a2a.TaskID]string{held.TaskID(): "later", asked.ID: "answered"} {
		wait.Eventually(t, want+" is said by the next hub", taskIs(h, id, a2a.TaskStateCompleted))
		if task, err := h.Task(t.Context(), id, nil); err != nil || text(task.Status.Message) != want {
			t.Errorf("%+v, %v", task, err)
		}
	}
	if !taskIs(h, canceled.ID, a2a.TaskStateCanceled)() {
		t.Error("a canceled task was begun")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// The hold ends some seconds after the last call, and after a minute of calls.
func TestTurnsAreHeldForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, hub.Config{}, map[string]*fakeAgent{"actor": actor()})
		working, err := h.Send(t.Context(), request("actor", "wait"))
		if err != nil {
			t.Fatal(err)
		}
		began := func() time.Duration {
			at := time.Now()
			if _, err := h.SendAndWait(t.Context(), request("actor", "say:x")); err != nil {
				t.Error(err)
			}
			return time.Since(at)
		}
		if h.Drain() != 1 {
			t.Error("the hub is not busy")
		}
		if took := began(); took < 4*time.Second || took > 6*time.Second {
			t.Errorf("after one call turns were held for %v", took)
		}
		calls, stop := context.WithCancel(t.Context())
		defer stop()
		go func() {
			for calls.Err() == nil {
				h.Drain()
				wait.Pause(calls, time.Second/2)
			}
		}()
		synctest.Wait()
		if took := began(); took < 59*time.Second || took > 61*time.Second {
			t.Errorf("with calls that go on turns were held for %v", took)
		}
		if took := began(); took > time.Second {
			t.Errorf("in the pause after it turns were held for %v", took)
		}
		time.Sleep(4*time.Minute + time.Second)
		if took := began(); took < 50*time.Second {
			t.Errorf("after the pause turns were held for %v", took)
		}
		stop()
		if _, err := h.Cancel(t.Context(), working.ID); err != nil {
			t.Error(err)
		}
	})
}
