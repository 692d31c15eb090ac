package daemon

import "github.com/parleyhub/parley/internal/base/statefile"

// fileDamaged enters the damage of one of the hub's files into the ledger of the store's damage, once the bus is open, or else into the
// log. Only the goroutine that opens the daemon calls it.
func (d *daemon) fileDamaged(x statefile.Damage) {
	if d.bus == nil {
		d.damaged = append(d.damaged, x)
		return
	}
	if d.bus.FileDamaged(x.Path, x.Kept, x.Reason, x.Loss, x.Restored) {
		return
	}
	d.log.Error("a file of the hub was damaged", "file", x.Path, "reason", x.Reason, "kept", x.Kept, "restored", x.Restored, "holds", x.Loss)
}
