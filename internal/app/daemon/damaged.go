package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhub/parley/identity"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/base/statefile"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/federation/peers"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// filesInterval is the pause between two looks for damaged files that other processes have.
const filesInterval = time.Minute

// fileDamaged enters the damage of one of the hub's files into the ledger of the store's damage, once the bus is open, or else into the
// log. Until then only the goroutine that opens the daemon calls it.
func (d *daemon) fileDamaged(x statefile.Damage) {
	if d.bus == nil {
		d.damaged = append(d.damaged, x)
		return
	}
	if d.bus.FileDamaged(x.ID, x.Path, x.Kept, x.Reason, x.Loss, x.Restored) {
		return
	}
	d.log.Error("a file of the hub was damaged", "file", x.Path, "reason", x.Reason, "kept", x.Kept, "restored", x.Restored, "holds", x.Loss)
}

// watchFiles notes, until ctx ends, the damage of the files that agents' processes have on this computer, and what other processes have moved
// aside in the data directory. It mends the hub's own files.
func (d *daemon) watchFiles(ctx context.Context) {
	noted := map[string]string{} // where what is damaged is now; an external bus has no ledger that knows
	for {
		d.mendFiles()
		for _, x := range d.damagedFiles() {
			if kept, known := noted[x.ID]; !known || !x.Restored && x.Kept != kept {
				noted[x.ID] = x.Kept
				d.fileDamaged(x)
			}
		}
		if !wait.Pause(ctx, filesInterval) {
			return
		}
	}
}

// mendFiles mends what a hub reads only at its start: a second damage, of the copy, would keep the next one from starting, or make it another
// hub.
func (d *daemon) mendFiles() {
	err := keepFormat(d.cfg.DataDir, d.opts.Version, d.fileDamaged)
	name := nameFile(d.cfg.DataDir, d.fileDamaged)
	if _, damage, perr := name.Peek(); perr == nil && (damage == nil || damage.Restored) { // else the next start says what to do
		_, _ = name.Read()
	}
	key := peers.KeyPath(d.cfg.DataDir)
	if _, ok := (statefile.Raw{Path: key}).Changed(); ok {
		_, kerr := identity.Load(key)
		err = errors.Join(err, kerr)
	}
	if err != nil {
		d.log.Warn("a file of the hub is damaged and cannot be mended", "error", err)
	}
}

func (d *daemon) damagedFiles() []statefile.Damage {
	all, err := registry.DamagedFiles(mcpconfig.AgentsDir())
	unsent, uerr := damagedIn(mcpconfig.UnsentDir(), "messages of a channel that waited for the bus")
	all = append(all, unsent...)
	err = errors.Join(err, uerr)
	loops, _ := filepath.Glob(filepath.Join(d.cfg.DataDir, "loops", "*")) // nil if there is none
	for _, dir := range append(loops, d.cfg.DataDir) {
		ours, oerr := damagedIn(dir, "")
		all = append(all, ours...)
		err = errors.Join(err, oerr)
	}
	if err != nil {
		d.log.Warn("damaged files are not noticed", "error", err)
	}
	return all
}

// damagedIn returns what processes have moved aside in a directory, which need not exist, and the files that differ from their copies in a
// bit and that the next use restores. Files with checksums of their own are the matter of the processes that have them.
func damagedIn(dir, loss string) (all []statefile.Damage, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if x, ok := statefile.SetAside(path); ok && e.Type().IsRegular() {
			x.Loss = loss
			all = append(all, x)
		}
		if of, ok := statefile.CopyOf(path); ok {
			if _, x, perr := statefile.Edited(of).Peek(); perr == nil && x != nil {
				all = append(all, *x)
			}
		}
	}
	return all, err
}
