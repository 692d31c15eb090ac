package cli

import (
	"context"
	"sync"
	"time"

	"github.com/parleyhub/parley/internal/api/client"
	"github.com/parleyhub/parley/internal/api/dialect"
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
}

type swarmNotice struct{ task, words string }

// await waits for a change of a swarm, as [client.Client.AwaitSwarm] does. It calls print, from another goroutine,
// only until it returns.
func (n *swarmNotices) await(ctx context.Context, id string, after uint64) (*swarm.Session, error) {
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { n.watch(watching, id) })
	defer watcher.Wait()
	defer stop()
	return n.client.AwaitSwarm(ctx, id, after)
}

// watch prints new notices until ctx ends. While the hub is down it prints none.
func (n *swarmNotices) watch(ctx context.Context, id string) {
	for {
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
