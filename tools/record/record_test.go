package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// The committed recording shows the screens as they are.
func TestTheRecordingIsUpToDate(t *testing.T) {
	got := record()
	want, err := os.ReadFile("../../docs/screens.svg")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n"))) {
		t.Error("docs/screens.svg is not what the screens show: run go run ./tools/record")
	}
	if !bytes.Equal(got, record()) {
		t.Error("two recordings differ")
	}
	if len(got) > 100<<10 {
		t.Errorf("%d bytes", len(got))
	}
	for d := xml.NewDecoder(bytes.NewReader(got)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"Allow Bash: make publish?", "the quota of this month", "changed +3 -0 in moons.md", "prefers-reduced-motion", "prefers-color-scheme"} {
		if !strings.Contains(string(got), part) {
			t.Errorf("no %q in the recording", part)
		}
	}
}
