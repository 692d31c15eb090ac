package work

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// claim returns the item as its holder's claim.
func (x record) claim() *Claim {
	return &Claim{x.TaskID, x.Token, x.Capability, x.Description, x.RequiredCapabilities, x.Priority, x.Deadline, x.ContextData,
		x.SubmitterGUID, x.SubmitterHandle, x.SubmittedAt, x.Deliveries, x.MaxAttempts, x.LeaseUntil, x.Generation}
}

// Held returns the items that the agent holds, so that a worker which was killed continues with them. An item whose
// lease has ended is among them until another worker claims it; its holder extends the lease first. It reads all records.
func (w *Worker) Held(ctx context.Context) ([]*Claim, error) {
	b, err := w.agent.Ready()
	if err != nil {
		return nil, err
	}
	held := map[string]record{} // the latest record of an item that is visited twice
	err = w.svc.scan(ctx, b, func(x record, _ time.Time) {
		delete(held, x.TaskID)
		if w.holds(&Item{record: x}, x.Token) {
			held[x.TaskID] = x
		}
	})
	if err != nil {
		return nil, err
	}
	var claims []*Claim
	for _, x := range held {
		claims = append(claims, x.claim())
	}
	slices.SortFunc(claims, func(a, b *Claim) int { return cmp.Compare(a.SubmittedAt, b.SubmittedAt) })
	return claims, nil
}
