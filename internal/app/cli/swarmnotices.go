package cli

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
	"github.com/parleyhub/parley/internal/federation/node"
	"github.com/parleyhub/parley/swarm"
)

// noticeInterval is the time between two looks at the notices of a swarm's agents.
const noticeInterval = time.Second / 2

// swarmNotices prints the notices of a swarm's agents while they work, such as the retries of a request, each once.
// It is not safe for concurrent use.
type swarmNotices struct {
	client *client.Client
	print  func(agent, words string)
	seen   map[swarmNotice]bool

	asked    map[string]bool // questions that were shown, by task
	question *dialect.Task   // the one that ended await
}

// errSwarmAsks ends await: the swarm cannot go on without an answer.
var errSwarmAsks = errors.New("the swarm asks")

type swarmNotice struct{ task, words string }

// await waits for a change of a swarm, as [client.Client.AwaitSwarm] does. It calls print, from another goroutine,
// only until it returns. The error is errSwarmAsks if the swarm has a question, which it returns once.
func (n *swarmNotices) await(ctx context.Context, id string, after uint64) (*swarm.Session, error) {
	waiting, stop := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	n.question = nil
	watcher.Go(func() { n.watch(waiting, id, stop) })
	s, err := n.client.AwaitSwarm(waiting, id, after)
	stop(nil)
	watcher.Wait()
	if n.question != nil { // perhaps found at the moment of a change: it is returned once
		return nil, errSwarmAsks
	}
	return s, err
}

// findQuestion returns the open question of a swarm that was not returned before, nil if there is none.
func (n *swarmNotices) findQuestion(ctx context.Context, id string) *dialect.Task {
	page, err := n.client.Tasks(ctx, dialect.TasksListParams{State: dialect.StateInputRequired, AgentID: node.EscalationAgent, Limit: maxSwarmTasks})
	if err != nil {
		return nil // also while no swarm has asked
	}
	for _, t := range page.Tasks {
		if swarmOf(&t) == id && !n.asked[t.ID] {
			if n.asked == nil {
				n.asked = make(map[string]bool)
			}
			n.asked[t.ID] = true
			return &t
		}
	}
	return nil
}

// watch prints new notices until ctx ends, and ends the wait for a question. While the hub is down it prints none.
func (n *swarmNotices) watch(ctx context.Context, id string, stop context.CancelCauseFunc) {
	for {
		if n.question = n.findQuestion(ctx, id); n.question != nil {
			stop(errSwarmAsks)
			return
		}
		page, err := n.client.Tasks(ctx, dialect.TasksListParams{State: dialect.StateWorking, Limit: maxSwarmTasks})
		if err == nil {
			n.printNew(page.Tasks, id)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(noticeInterval):
		}
	}
}

func (n *swarmNotices) printNew(tasks []dialect.Task, id string) {
	if n.seen == nil {
		n.seen = make(map[swarmNotice]bool)
	}
	for _, t := range tasks {
		if swarmOf(&t) != id {
			continue
		}
		for _, words := range notices(&t) {
			if key := (swarmNotice{t.ID, words}); !n.seen[key] {
				n.seen[key] = true
				n.print(agentOf(&t), words)
			}
		}
	}
}
