package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/exchange"
	"github.com/parleyhub/parley/internal/federation/node"
)

// withdrawal is the cancellation of a turn that another hub has not confirmed yet. It is repeated until it is, since the task
// would go on there.
type withdrawal struct {
	Agent string    `json:"agent"` // its global id
	Task  string    `json:"task"`  // at this hub
	Turn  int       `json:"turn"`
	Until time.Time `json:"until"` // the task has ended there by then
}

func (w withdrawal) Key() string { return fmt.Sprintf("%s %d", w.Task, w.Turn) }

func withdrawalsPath(dataDir string) string { return filepath.Join(dataDir, "peer-cancellations.json") }

const (
	confirmTime = 10 * time.Second // for one attempt
	// maxWithdrawals bounds the cancellations that are being repeated; more are stored, for the hub's next start.
	maxWithdrawals = 1000
)

// withdraw cancels a turn in the background, also after the hub's next start.
func (p *Peers) withdraw(w withdrawal) {
	if err := p.withdrawals.Put(w); err != nil {
		p.log.Error("a cancellation cannot be stored; the task may go on at its hub if this one stops", "task", w.Task, "error", err)
	}
	p.repeat(w)
}

// repeat starts to cancel a turn, unless too many are being canceled or the Peers are closing.
func (p *Peers) repeat(w withdrawal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil || p.withdrawing >= maxWithdrawals {
		return
	}
	p.withdrawing++
	p.wg.Go(func() {
		p.untilConfirmed(w)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.withdrawing--
	})
}

// untilConfirmed repeats a cancellation until the other hub has confirmed it, or the task has ended there.
func (p *Peers) untilConfirmed(w withdrawal) {
	ctx, cancel := context.WithDeadline(p.ctx, w.Until)
	defer cancel()
	retry := wait.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for !p.confirmed(ctx, w) {
		if !retry.Pause(ctx) {
			break
		}
	}
	if p.ctx.Err() != nil {
		return
	}
	if err := p.withdrawals.Remove(w.Key()); err != nil {
		p.log.Warn("the list of cancellations cannot be stored", "error", err)
	}
}

// confirmed cancels a turn once, and reports whether the other hub has confirmed it.
func (p *Peers) confirmed(ctx context.Context, w withdrawal) bool {
	card, err := p.node.Registry().Get(w.Agent)
	if err != nil || !node.Keyed(card) {
		return false
	}
	f := p.sender(card.Tier)
	if f == nil {
		return true // nothing can be sent there any more
	}
	id := "cancel " + w.Key()
	answers, done := f.Subscribe(w.Agent, id)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	of, err := f.Send(ctx, w.Agent, id, envelope.Notification, exchange.Cancellation(w.Task, w.Turn), "")
	if err != nil {
		return false
	}
	for {
		select {
		case e, ok := <-answers:
			if !ok || e == nil {
				return false
			}
			var answer node.Failure // a result has the fields of interest too
			if json.Unmarshal(e.Payload, &answer) == nil && answer.Of == of {
				return e.Type == envelope.Response || !exchange.Temporary(answer.Code)
			}
		case <-ctx.Done():
			return false
		}
	}
}
