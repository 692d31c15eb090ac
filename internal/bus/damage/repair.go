package damage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/parleyhub/parley/internal/base/local"
)

// Survey reads the whole store and returns the damage that the next Check would find and mend. It changes nothing. live
// says that a server has the store open: what it may be writing is left out.
func (k *Keeper) Survey(ctx context.Context, live bool) ([]Record, error) {
	all, err := streams(k.Dir)
	if err != nil {
		return nil, err
	}
	var left stopped
	if !live {
		left = k.readStopped()
	}
	left.mark(all)
	var found []Record
	for account := range left {
		there := slices.DeleteFunc(slices.Clone(all), func(s stream) bool { return s.account != account })
		for _, s := range left.gone(k.Dir, account, there) {
			found = append(found, s.signed(k.goneRecord(s)))
		}
	}
	for i := range all {
		s := &all[i]
		if s.encrypted() {
			continue
		}
		found = append(found, k.surveyStream(ctx, s, live)...)
		if r, ok := k.shorter(s); ok {
			found = append(found, s.signed(r))
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (k *Keeper) surveyStream(ctx context.Context, s *stream, live bool) (found []Record) {
	report := func(r Record) {
		found = append(found, s.signed(r))
	}
	if _, intact := readSettingsFiles(s.dir, s.name); !intact && !live {
		report(Record{Kind: KindSettings, Action: ActionFound, Reason: string(reasonSum), File: k.relative(filepath.Join(s.dir, settingsFile))})
	}
	if err := errors.Join(s.readSettings(), s.readBlocks()); err != nil && !live {
		report(Record{Kind: KindBlock, Action: ActionFound, Reason: local.Reason(err), File: k.relative(s.dir)})
	}
	if _, damaged := s.checkIndex(); damaged && !live {
		report(Record{Kind: KindIndex, Action: ActionFound, Reason: string(reasonSum), File: k.relative(s.index())})
	}
	var buffer []byte
	for i, b := range s.blocks {
		j := job{stream: s, block: b, index: i}
		if fine, _ := k.checkBlock(j, &buffer); fine || ctx.Err() != nil {
			continue
		}
		raw, err := os.ReadFile(b.path)
		if errors.Is(err, fs.ErrNotExist) { // the server has removed it
			continue
		}
		v, verr := newReader(s.name, b.number, s.subjects)
		if err := errors.Join(err, verr); err != nil {
			report(Record{Kind: KindBlock, Action: ActionFound, Reason: local.Reason(err), File: k.relative(b.path)})
			continue
		}
		before, after := k.around(j)
		for _, part := range v.examine(raw, before, after, b.last).spans {
			if live && b.last && part.offset+part.length == len(raw) {
				continue // it is being written
			}
			report(k.recordOf(j, part, ActionFound))
		}
	}
	return found
}

// Restore searches the records that were set aside for a single flipped bit, longer than Check does, and puts those that
// it can correct back where they were. No server may have the store open. It returns how many it has put back.
func (k *Keeper) Restore(ctx context.Context) (restored int, err error) {
	for _, r := range k.Records() {
		if ctx.Err() != nil {
			return restored, ctx.Err()
		}
		if r.Settled || r.Action != ActionQuarantined || r.Kept == "" || r.Length > maxRepairTrials || !strings.HasSuffix(r.File, blockSuffix) {
			continue
		}
		ok, rerr := k.putBack(r)
		if rerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", r.ID, rerr))
		}
		if ok {
			restored++
		}
	}
	return restored, errors.Join(err, k.ledger.sync())
}

// putBack corrects one record and writes it over the erased record in its place. It reports false if it cannot be
// corrected, or if the server has moved its block meanwhile.
func (k *Keeper) putBack(r Record) (bool, error) {
	b, err := os.ReadFile(filepath.Join(k.Dir, filepath.FromSlash(r.Kept)))
	if err != nil {
		return false, err
	}
	path := filepath.Join(k.Dir, filepath.FromSlash(r.File))
	s := &stream{account: r.Account, name: r.Stream, dir: filepath.Dir(filepath.Dir(path))}
	if err := errors.Join(s.readSettings(), s.readBlocks()); err != nil {
		return false, err
	}
	for _, block := range s.blocks {
		if block.path != path {
			continue
		}
		v, err := newReader(s.name, block.number, s.subjects)
		if err != nil {
			return false, err
		}
		v.trials = maxRepairTrials
		_, why := v.verify(b)
		found, bit := v.correct(b, why)
		if bit < 0 || found.length != r.Length {
			return false, nil
		}
		if ok, err := k.replace(s, v, r, b); !ok || err != nil {
			return false, err
		}
		r.Action, r.Bit = ActionCorrected, &bit
		k.note(s, r, nil)
		return true, nil
	}
	return false, nil
}

// replace writes a corrected record in the place of the erased one.
func (k *Keeper) replace(s *stream, v *reader, r Record, corrected []byte) (bool, error) {
	path := filepath.Join(k.Dir, filepath.FromSlash(r.File))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	now := make([]byte, r.Length)
	if _, err := f.ReadAt(now, int64(r.Offset)); err != nil {
		return false, f.Close()
	}
	there, why := v.verify(now)
	if why != reasonNone || !there.erased || there.length != r.Length || there.sequence != binary.LittleEndian.Uint64(corrected[4:]) {
		return false, f.Close()
	}
	_, err = f.WriteAt(corrected, int64(r.Offset))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return false, err
	}
	if err := os.Remove(s.index()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, nil
}
