package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Every mutation has its place, which is there once, in the sources of today, and compiles.
func TestMutationsApply(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	overlay, err := writeMutants(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(overlay)
	if err != nil {
		t.Fatal(err)
	}
	var files struct{ Replace map[string]string }
	if err := json.Unmarshal(data, &files); err != nil || len(files.Replace) < 8 {
		t.Fatalf("%v, %s", err, data)
	}
	for i, m := range mutations {
		path, err := filepath.Abs(filepath.FromSlash(m.file))
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(files.Replace[path])
		if err != nil || !strings.Contains(string(source), fmt.Sprintf("%s\") == \"%d\"", mutantVariable, i+1)) {
			t.Errorf("%s: %v", m.breaks, err)
		}
	}
	build := []string{"build", "-overlay", overlay}
	for path := range files.Replace {
		build = append(build, filepath.Dir(path))
	}
	if out, err := exec.CommandContext(t.Context(), "go", build...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := (mutation{old: "nowhere"}).apply("package x\n", 1); err == nil {
		t.Error("a place that is not there")
	}
}

func TestLeaksAreFound(t *testing.T) {
	steady := func() (all []sample) {
		for i := range 12 {
			all = append(all, sample{at: time.Duration(i) * time.Minute, memory: 80 << 20, descriptors: 80, goroutines: 300, disk: 8 << 20, operations: i * 100})
		}
		return all
	}
	if broken := leaks(steady()); len(broken) > 0 {
		t.Errorf("nothing leaks: %q", broken)
	}
	for what, grow := range map[string]func(s *sample, i int){
		"memory":      func(s *sample, i int) { s.memory += int64(i) * 20 << 20 },
		"descriptors": func(s *sample, i int) { s.descriptors += 10 * i },
		"goroutines":  func(s *sample, i int) { s.goroutines += 50 * i },
		"processes":   func(s *sample, i int) { s.processes += i },
		"temporary":   func(s *sample, i int) { s.tmp += i },
		"data":        func(s *sample, i int) { s.disk += int64(i) * 20 << 20 },
	} {
		all := steady()
		for i := range all {
			grow(&all[i], i)
		}
		if broken := leaks(all); len(broken) != 1 || !strings.Contains(broken[0], what) {
			t.Errorf("%s: %q", what, broken)
		}
	}
	if leaks(steady()[:3]) != nil {
		t.Error("too few samples")
	}
}

func TestFaultsAreSelected(t *testing.T) {
	x := injector{t: newTraffic(t.Context(), &hub{}, campaign{clients: 1, only: "kills, restarts"}, &history{})}
	var names []string
	for _, f := range x.faults() {
		names = append(names, f.name)
	}
	if !slices.Equal(names, []string{"kills", "restarts"}) {
		t.Errorf("%q", names)
	}
	if text := (faultCounts{"kills": 2, "a": 1}).String(); text != "a 1, kills 2" {
		t.Error(text)
	}
}
