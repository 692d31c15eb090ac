package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The source of this Go's package time has the one place at which the campaign's program reads another clock.
func TestTimeCanBeShifted(t *testing.T) {
	source, err := timePackage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := shiftTime(string(data))
	if err != nil || !strings.Contains(text, "sec += wallShift()") {
		t.Errorf("%v, %d bytes", err, len(text))
	}
	if _, err := shiftTime(text[:100]); err == nil {
		t.Error("a source without the place")
	}
}

// The programs find in a file by how much the clock is wrong.
func TestTheClockIsSet(t *testing.T) {
	w, err := newWallClock(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.set(-90 * time.Minute); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(w.path)
	if err != nil || int64(binary.NativeEndian.Uint64(data)) != -5400 {
		t.Errorf("%v, %v", data, err)
	}
	if by := time.Until(w.now()); by > -89*time.Minute || by < -91*time.Minute {
		t.Errorf("%v", by)
	}
}
