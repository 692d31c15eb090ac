package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/agentnet/assignment"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/sessions"
	"github.com/parleyhub/parley/internal/testbed/nettest"
)

// slowCancel holds back the notice that a task is canceled until it is released.
type slowCancel struct {
	sessions.Assigner
	began, release chan struct{}
}

func (s *slowCancel) Post(ctx context.Context, n assignment.Notice) (time.Time, error) {
	if n.Canceled {
		close(s.began)
		<-s.release
	}
	return s.Assigner.Post(ctx, n)
}

// An answer that is given while its task ends otherwise is refused with how it has ended, as soon as it has.
func TestAnAnswerToATaskThatIsBeingCanceledIsRefused(t *testing.T) {
	t.Parallel()
	slow := &slowCancel{began: make(chan struct{}), release: make(chan struct{})}
	o := &office{t: t, dir: t.TempDir(), net: nettest.StartServer(t), durability: bus.DurabilityFast,
		wrap: func(a sessions.Assigner) sessions.Assigner { slow.Assigner = a; return slow }}
	o.start()
	a := o.session(registry.Registration{Handle: "reviewer"})
	id := o.send("reviewer", "do it")
	o.read(a)
	canceled := make(chan error, 1)
	go func() {
		_, err := o.hub.Cancel(context.Background(), id)
		canceled <- err
	}()
	<-slow.began
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	answers := make(chan error, 2)
	for range cap(answers) {
		go func() { answers <- o.sessions.Answer(ctx, a.GUID(), answerTo(id, "late")) }()
	}
	said := []error{<-answers} // of the second: the first waits for the turn
	close(slow.release)
	if err := <-canceled; err != nil {
		t.Error(err)
	}
	said = append(said, <-answers)
	for _, err := range said {
		if store.CodeOf(err) != store.ConflictError {
			t.Errorf("a late answer: %v", err)
		}
	}
	if !strings.Contains(fmt.Sprint(said), "it is canceled") {
		t.Errorf("nobody is told how the task has ended: %v", said)
	}
	if end := o.task(id); end.Status.State != a2a.TaskStateCanceled || len(end.History) != 1 {
		t.Errorf("the task is %+v", end)
	}
}

// Programs of one session answer at the same time, each with an answer of its own, also while the hub is killed and started: one
// answer is the task's, and the others learn that there is one.
func TestProgramsOfOneSessionAnswerATaskOnce(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %t", restarted), func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			a := o.session(registry.Registration{Handle: "reviewer"})
			id := o.send("reviewer", "is this safe?")
			o.read(a)
			var all sync.WaitGroup
			results := make(chan error, 6)
			for i := range cap(results) {
				program, err := nettest.Dialer(o.net)(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := program.Close(context.Background()); err != nil {
						t.Error(err)
					}
				}()
				all.Go(func() {
					results <- giveUntilTaken(t.Context(), program, a.GUID(), answerTo(id, fmt.Sprint("answer ", i)))
				})
			}
			if restarted {
				o.stop()
				o.start()
			}
			all.Wait()
			close(results)
			stored := 0
			for err := range results {
				switch {
				case err == nil:
					stored++
				case store.CodeOf(err) != store.ConflictError || !strings.Contains(err.Error(), "ended already") && !strings.Contains(err.Error(), "is being stored"):
					t.Errorf("another program is told: %v", err)
				}
			}
			if end := o.task(id); stored != 1 || end.Status.State != a2a.TaskStateCompleted || len(end.History) != 2 {
				t.Errorf("%d programs were told that theirs is stored; the task is %+v", stored, end)
			}
		})
	}
}

// giveUntilTaken gives an answer again, as the tool does, until the hub has said what has become of it.
func giveUntilTaken(ctx context.Context, b *bus.Bus, guid string, a assignment.Answer) error {
	for {
		err := a.Send(ctx, b, guid)
		if e, ok := errors.AsType[*store.Error](err); !ok || e.Code != store.ConnectionError {
			return err
		}
	}
}
