package main

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// flipBit flips a bit of the records in a store that nobody uses. Without records it does nothing.
func flipBit(dir string, random *rand.Rand) error {
	var blocks []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && filepath.Ext(path) == ".blk" {
			if info, err := d.Info(); err == nil && info.Size() > 0 {
				blocks = append(blocks, path)
			}
		}
		return err
	})
	if err != nil || len(blocks) == 0 {
		return err
	}
	slices.Sort(blocks)
	f, err := os.OpenFile(blocks[random.IntN(len(blocks))], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		at, b := random.Int64N(info.Size()), make([]byte, 1)
		if _, err = f.ReadAt(b, at); err == nil {
			b[0] ^= 1 << random.IntN(8)
			_, err = f.WriteAt(b, at)
		}
	}
	return errors.Join(err, f.Close())
}
