package main

import (
	"bytes"
	"errors"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestQuantilesOfStarts(t *testing.T) {
	var all []time.Duration
	for i := range 200 {
		all = append(all, time.Duration(200-i)*time.Millisecond)
	}
	if p50, p99, longest := quantile(all, 50), quantile(all, 99), quantile(all, 100); p50 != 101*time.Millisecond || p99 != 199*time.Millisecond || longest != 200*time.Millisecond {
		t.Error(p50, p99, longest)
	}
	if none := quantile(nil, 50); none != 0 {
		t.Error(none)
	}
	if got, want := spread(all), "200 starts, p50 101ms, p99 199ms, longest 200ms"; got != want {
		t.Error(got)
	}
}

func TestOneBitIsFlipped(t *testing.T) {
	all := []string{"1.blk", "2.blk", "index.db", "peer.key", "peer.key.copy", "a/b.guid", "a/b.guid.copy", "gone.copy", "l.jsonl", "unsent-1.json"}
	for name, test := range map[string]struct {
		of   func(dir string) ([]string, error)
		want []string
	}{
		"of a record":        {records, []string{"1.blk", "2.blk"}},
		"of a file":          {copied, []string{"peer.key", "a/b.guid"}},
		"of a line":          {signedLines, []string{"l.jsonl", "unsent-1.json"}},
		"nothing is written": {func(string) ([]string, error) { return nil, nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir, random := t.TempDir(), rand.New(rand.NewPCG(1, 1))
			if none, err := test.of(dir); err != nil || len(none) > 0 {
				t.Error(none, err)
			}
			before := bytes.Repeat([]byte{7}, 1000)
			for _, file := range all {
				if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o700), os.WriteFile(filepath.Join(dir, file), before, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			files, err := test.of(dir)
			if err = errors.Join(err, flipBit(files, random)); err != nil {
				t.Fatal(err)
			}
			flipped := 0
			for _, file := range all {
				after, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					t.Fatal(err)
				}
				for i := range after {
					n := bits.OnesCount8(after[i] ^ before[i])
					if flipped += n; n > 0 && !slices.Contains(test.want, file) {
						t.Errorf("a bit of %s was flipped", file)
					}
				}
			}
			if flipped != min(1, len(test.want)) {
				t.Errorf("%d bits were flipped", flipped)
			}
		})
	}
}
