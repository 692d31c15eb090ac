//go:build unix

package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/app/cli"
)

// The tables of the commands at the two widths for which they are made, and in a pipe.
func TestTablesFitTheTerminal(t *testing.T) {
	t.Parallel()
	for name, print := range map[string]func(*bytes.Buffer, int){
		"tasks": cli.SampleTasks, "agents": cli.SampleAgents, "health": cli.SampleHealth, "network": cli.SampleNetwork, "swarms": cli.SampleSwarms,
	} {
		var all strings.Builder
		for _, width := range []int{80, 200, 0} {
			var b bytes.Buffer
			print(&b, width)
			for line := range strings.Lines(b.String()) {
				if n := cli.Cells(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
					t.Errorf("%s: a line of %d cells at a width of %d: %q", name, n, width, line)
				}
			}
			all.WriteString(b.String() + "--\n")
		}
		path := filepath.Join("testdata", "table-"+name+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), all.String()); diff != "" {
			t.Errorf("%s differs (run the test with -update if that is meant):\n%s", path, diff)
		}
	}
}

// No line is longer than the terminal is wide, whatever the cells and the weights are.
func TestPropertyNoTableIsWiderThanItsTerminal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "columns")
		columns := make([]cli.Column, n)
		for i := range columns {
			columns[i] = cli.NewColumn(rapid.StringMatching(`[A-Z]{1,12}`).Draw(t, "heading"), rapid.IntRange(0, 4).Draw(t, "weight"), rapid.IntRange(0, 20).Draw(t, "least"), rapid.Bool().Draw(t, "extra"))
		}
		rows := make([][]string, rapid.IntRange(0, 5).Draw(t, "rows"))
		for i := range rows {
			rows[i] = rapid.SliceOfN(rapid.StringMatching(`[a-z 日é]{0,60}`), n, n).Draw(t, "row")
		}
		width := rapid.IntRange(1, 220).Draw(t, "width")
		var b bytes.Buffer
		cli.RenderTable(&b, columns, width, rows)
		for line := range strings.Lines(b.String()) {
			if got := cli.Cells(strings.TrimSuffix(line, "\n")); got > width {
				t.Fatalf("%d cells at a width of %d: %q", got, width, line)
			}
		}
	})
}

// A table that fits is not cut.
func TestPropertyATableThatFitsIsWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rows := [][]string{rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,20}`), 4, 4).Draw(t, "row")}
		columns := []cli.Column{cli.NewColumn("A", 0, 0, false), cli.NewColumn("B", 1, 0, true), cli.NewColumn("C", 3, 0, false), cli.NewColumn("D", 2, 0, true)}
		var b bytes.Buffer
		cli.RenderTable(&b, columns, 4*20+3*2, rows)
		if got := strings.Fields(strings.SplitAfter(b.String(), "\n")[1]); cmp.Diff(got, rows[0]) != "" {
			t.Fatalf("%q of %q", got, rows[0])
		}
	})
}

func TestNoHelpIsWiderThanTheTerminal(t *testing.T) {
	t.Parallel()
	for _, args := range cli.CommandLines("parley") {
		var stdout, stderr bytes.Buffer
		code := cli.Run(t.Context(), "parley", append(args, "--help"), strings.NewReader(""), &stdout, &stderr, nil, nil)
		if code != 0 || !strings.Contains(stdout.String(), "Usage:") {
			t.Errorf("%q: exit %d, %q, %q", args, code, stdout.String(), stderr.String())
		}
		for line := range strings.Lines(stdout.String()) {
			if n := cli.Cells(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%q: a line of %d columns: %q", args, n, line)
			}
		}
		if slices.Equal(args, []string{"network"}) && !strings.Contains(stdout.String(), "\n  dead-letters List failed work, retry it, or discard it\n  inbox        Read") {
			t.Errorf("the commands are not in columns: %q", stdout.String())
		}
	}
}
