package main

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
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

func TestOneBitOfARecordIsFlipped(t *testing.T) {
	dir, random := t.TempDir(), rand.New(rand.NewPCG(1, 1))
	if err := flipBit(dir, random); err != nil { // nothing is stored
		t.Error(err)
	}
	before := bytes.Repeat([]byte{7}, 1000)
	for _, name := range []string{"1.blk", "2.blk", "index.db"} {
		if err := os.WriteFile(filepath.Join(dir, name), before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := flipBit(dir, random); err != nil {
		t.Fatal(err)
	}
	flipped := 0
	for _, name := range []string{"1.blk", "2.blk", "index.db"} {
		after, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for i := range after {
			n := bits.OnesCount8(after[i] ^ before[i])
			if flipped += n; n > 0 && name == "index.db" {
				t.Error("a bit of another file was flipped")
			}
		}
	}
	if flipped != 1 {
		t.Errorf("%d bits were flipped", flipped)
	}
}
