package bus

import (
	"context"
	"time"

	"github.com/parleyhub/parley/internal/bus/damage"
)

// checkPace is the pause after each block that is checked while the server runs.
const checkPace = 20 * time.Millisecond

// checkStore corrects or sets aside what is damaged in the store, before a server opens it. It never fails.
func (b *Bus) checkStore(ctx context.Context, cfg Config) {
	b.damage = damage.Open(damage.Options{Dir: b.dir, Logger: cfg.Logger.With("component", "store"), Budget: cfg.CheckBudget, Pace: checkPace})
	r := b.damage.Check(ctx)
	b.log.Debug("the store was checked", "blocks", r.Blocks, "bytes", r.Bytes, "later", r.Skipped, "found", r.Found, "took", r.Took)
}

// checkRest checks in the background what checkStore had no time for.
func (b *Bus) checkRest() {
	ctx, cancel := context.WithCancel(context.Background())
	b.endCheck = cancel
	b.checks.Go(func() { b.damage.Rest(ctx) })
}

// Damage returns all damage of the embedded store that was ever found, the newest last; nil for another kind of bus.
func (b *Bus) Damage() []damage.Record {
	if b.damage == nil {
		return nil
	}
	return b.damage.Records()
}

// DamageInfo counts the damage of an embedded store.
type DamageInfo struct {
	damage.Counts
	// Since is when the newest was found.
	Newest time.Time `json:"newest"`
}

func (b *Bus) damageInfo() *DamageInfo {
	records := b.damage.Records()
	if len(records) == 0 {
		return nil
	}
	return &DamageInfo{Counts: b.damage.Counts(), Newest: records[len(records)-1].At}
}
