package hub

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// Receipts are what is known of a session's attention for a task, beside the task's state. Times are RFC 3339, empty for what is
// not known to have happened.
type Receipts struct {
	WokenAt   string `json:"wokenAt,omitempty"`
	ShownAt   string `json:"shownAt,omitempty"`
	HeldAt    string `json:"heldAt,omitempty"`
	RefusedAt string `json:"refusedAt,omitempty"`
}

// ReceiptsOf returns the receipts in a task's metadata.
func ReceiptsOf(metadata map[string]any) (r Receipts) {
	data, err := json.Marshal(metadata[MetaReceipts])
	if err == nil {
		_ = json.Unmarshal(data, &r) // what is damaged is not known
	}
	return r
}

// receiptSigns are the signs that a task has.
var receiptSigns = []string{"woken", "shown", "held", "refused"}

// receipt records a sign, unless there is one already. mu is held.
func (t *task) receipt(r runner.Receipt) {
	before, _ := t.metadata[MetaReceipts].(map[string]any)
	key := r.Sign + "At"
	if before[key] != nil || !slices.Contains(receiptSigns, r.Sign) {
		return
	}
	after := maps.Clone(before) // snapshots share the former
	if after == nil {
		after = make(map[string]any)
	}
	after[key] = r.At.UTC().Format(time.RFC3339Nano)
	t.setMeta(MetaReceipts, after)
	t.flushSoon()
}
