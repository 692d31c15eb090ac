package bus

import (
	"cmp"
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus/damage"
)

// checkPace is the pause after each block that is checked while the server runs.
const checkPace = 20 * time.Millisecond

// checkFresh is how long a check in the background spares a process that joins a namespace another one.
const checkFresh = time.Minute

// checkDelay is how long checks in the background leave the processors to what starts with the bus.
const checkDelay = time.Second

// checkStore corrects or sets aside what is damaged in the store, before a server opens it. It never fails.
func (b *Bus) checkStore(ctx context.Context, cfg Config) {
	b.damage, _ = openKeeper(cfg) // the configuration has been checked
	b.damage.Later = func(account string) bool { return account != server.DEFAULT_GLOBAL_ACCOUNT }
	r := b.damage.Check(ctx)
	b.log.Debug("the store was checked", "blocks", r.Blocks, "bytes", r.Bytes, "later", r.Skipped, "found", r.Found, "took", r.Took)
}

// checkAccount does the same for an account that no server has open. After an error the server must not open it.
func (b *Bus) checkAccount(account string) error {
	ctx := context.Background()
	err := b.damage.CheckAccount(ctx, account)
	if err == nil {
		return nil
	}
	return cmp.Or(b.checkDisk(ctx), err)
}

// checkRest checks in the background what checkStore had no time for, and watches the disk.
func (b *Bus) checkRest() {
	ctx, cancel := context.WithCancel(context.Background())
	b.endCheck = cancel
	b.checkLater(ctx)
	b.checks.Go(func() { b.watchDisk(ctx) })
}

func (b *Bus) checkLater(ctx context.Context) {
	b.checks.Go(func() {
		if wait.Pause(ctx, checkDelay) {
			b.damage.Rest(ctx)
		}
	})
}

// Damage returns all damage of the embedded store that was ever found, the newest last; nil for another kind of bus.
func (b *Bus) Damage() []damage.Record {
	if b.damage == nil {
		return nil
	}
	return b.damage.Records()
}

// DamageRebuilt notes that what damaged records of a subject held is there again, from other records.
func (b *Bus) DamageRebuilt(subject string) {
	if b.damage != nil {
		b.damage.Rebuilt(subject)
	}
}

// FileDamaged enters the damage of a file beside the store into the ledger of the store's damage; see [damage.Keeper.NoteFile]. It reports
// false for another kind of bus, which has none.
func (b *Bus) FileDamaged(id, file, kept, reason, holds string, restored bool) bool {
	if b.damage == nil {
		return false
	}
	b.damage.NoteFile(id, file, kept, reason, holds, restored)
	return true
}

// DamageInfo counts the damage of an embedded store that is not settled.
type DamageInfo struct {
	damage.Counts
	// Newest is when the newest was found.
	Newest time.Time `json:"newest"`
}

func (b *Bus) damageInfo() *DamageInfo {
	records := b.damage.Records()
	counts := damage.CountsOf(records)
	if counts == (damage.Counts{}) {
		return nil
	}
	return &DamageInfo{Counts: counts, Newest: records[len(records)-1].At}
}

// Repair is what a repair has found and done.
type Repair struct {
	Applied bool `json:"applied"`
	// Records is the damage that is not settled, with what was or would be done about it.
	Records []damage.Record `json:"records"`
	damage.Counts
	// Restored is the number of records that were put back.
	Restored int `json:"restored"`
}

// Survey reads an embedded store and its ledger and changes nothing. The hub may be running.
func Survey(ctx context.Context, cfg Config, running bool) (Repair, error) {
	k, err := openKeeper(cfg)
	if err != nil {
		return Repair{}, err
	}
	found, err := k.Survey(ctx, running)
	if err != nil {
		return Repair{}, errorf(CodeStorage, err, checkDisk, "the store of %s cannot be read", cfg.DataDir)
	}
	all := k.Records()
	for _, r := range found {
		if !slices.ContainsFunc(all, func(known damage.Record) bool {
			return known.Action == damage.ActionFound && known.File == r.File && known.Offset == r.Offset
		}) {
			all = append(all, r)
		}
	}
	return repairOf(all), nil
}

// Mend corrects and restores what can be in an embedded store, and sets aside the rest. No hub may be running: the error
// has [CodeLocked] otherwise. It returns how many records were put back; Settle comes after it.
func Mend(ctx context.Context, cfg Config) (restored int, err error) {
	err = withKeeper(ctx, cfg, func(k *damage.Keeper) error {
		k.Budget = time.Duration(math.MaxInt64)
		k.Check(ctx)
		var err error
		if restored, err = k.Restore(ctx); err != nil {
			return errorf(CodeStorage, err, checkDisk, "not all damaged records could be put back")
		}
		return nil
	})
	return restored, err
}

// Settle marks all damage of an embedded store as settled and returns it. No hub may be running.
func Settle(ctx context.Context, cfg Config) (r Repair, err error) {
	err = withKeeper(ctx, cfg, func(k *damage.Keeper) error {
		r = repairOf(k.Records())
		r.Applied = true
		if err := k.Settle(); err != nil {
			return errorf(CodeStorage, err, checkDisk, "the ledger of damage cannot be written")
		}
		return nil
	})
	return r, err
}

// withKeeper calls f while no other process has the store.
func withKeeper(ctx context.Context, cfg Config, f func(*damage.Keeper) error) (err error) {
	dir, err := makeDir(cfg.DataDir)
	if err != nil {
		return err
	}
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	k, err := openKeeper(cfg)
	if err != nil {
		return err
	}
	return f(k)
}

func openKeeper(cfg Config) (*damage.Keeper, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return damage.Open(damage.Options{Dir: filepath.Join(cfg.DataDir, busDir), Logger: cfg.Logger.With("component", "store"), Budget: cfg.CheckBudget, Pace: checkPace, Fresh: checkFresh}), nil
}

func repairOf(all []damage.Record) Repair {
	r := Repair{Records: []damage.Record{}, Counts: damage.CountsOf(all)}
	for _, record := range all {
		if !record.Settled {
			r.Records = append(r.Records, record)
		}
	}
	return r
}

// KnownDamage counts the damage in the ledger below a data directory, without a look at the store.
func KnownDamage(dataDir string) damage.Counts {
	k, err := openKeeper(Config{DataDir: dataDir})
	if err != nil {
		return damage.Counts{}
	}
	return k.Counts()
}
