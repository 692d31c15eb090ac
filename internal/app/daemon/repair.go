package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/config"
	"github.com/parleyhub/parley/internal/documents"
)

// Repaired is what a repair of a hub's store has found and done.
type Repaired struct {
	bus.Repair
	// Documents are those that had lost their heads, with what they were rebuilt from.
	Documents []documents.Rebuilt `json:"documents"`
}

// Repair mends the embedded store of a hub that does not run: it corrects what can be, rebuilds documents from their
// snapshots and logs, sets aside the rest, and settles the damage.
func Repair(ctx context.Context, cfg *config.Loaded) (Repaired, error) {
	store := BusConfig(cfg, nil)
	store.Leaf = bus.LeafConfig{} // nothing leaves the computer
	restored, err := bus.Mend(ctx, store)
	if err != nil {
		return Repaired{}, err
	}
	rebuilt, err := rebuildDocuments(ctx, cfg.DataDir, store)
	if err != nil {
		return Repaired{}, err
	}
	r, err := bus.Settle(ctx, store)
	r.Restored = restored
	return Repaired{Repair: r, Documents: rebuilt}, err
}

// rebuildDocuments opens the store for as long as the documents are checked.
func rebuildDocuments(ctx context.Context, dataDir string, cfg bus.Config) (rebuilt []documents.Rebuilt, err error) {
	rebuilt = []documents.Rebuilt{}
	if _, err := os.Stat(filepath.Join(dataDir, "bus", "jetstream")); errors.Is(err, fs.ErrNotExist) {
		return rebuilt, nil // no hub has run yet
	}
	name, err := hubName(dataDir, true, nil)
	if err != nil {
		return nil, err
	}
	b, err := bus.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	l, err := documents.Open(ctx, documents.Options{Bus: b, Name: name})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close(context.WithoutCancel(ctx))) }()
	found, err := l.Rebuilt(ctx)
	return append(rebuilt, found...), err
}
