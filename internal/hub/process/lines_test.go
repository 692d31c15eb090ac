package process_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/process"
)

// split reads all lines; a line that was too long is returned as "!".
func split(t interface{ Fatal(...any) }, r io.Reader, max int) []string {
	lines := process.NewLines(r, max)
	var got []string
	for {
		l, err := lines.Next()
		switch {
		case errors.Is(err, process.ErrLineTooLong):
			got = append(got, "!")
		case err == io.EOF:
			return got
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, string(l))
		}
	}
}

// model computes the expected result of split.
func model(s string, max int) []string {
	var want []string
	for s != "" {
		line, rest, _ := strings.Cut(s, "\n")
		s = rest
		line = strings.TrimSuffix(line, "\r")
		if len(line) > max {
			line = "!"
		}
		want = append(want, line)
	}
	return want
}

func TestLines(t *testing.T) {
	for _, s := range []string{
		"", "\n", "\n\n", "a", "a\n", "a\r\nb", "\r\n", "\r", "12345\n", "123456\n", "12345\r\n", "123456\r\n",
		"1234567890\nok\n", "1234567890", "12345\r", "12345\r\r\n", "ok\n" + strings.Repeat("x", 100_000) + "\nok",
	} {
		if got, want := split(t, strings.NewReader(s), 5), model(s, 5); strings.Join(got, "|") != strings.Join(want, "|") || len(got) != len(want) {
			t.Errorf("%.50q: got %q want %q", s, got, want)
		}
	}
}

func TestLinesDoNotDependOnReadSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringMatching(`([ab]{0,9}\r?\n?){0,20}`).Draw(t, "text")
		max := rapid.IntRange(0, 6).Draw(t, "max")
		want := strings.Join(model(s, max), "|")
		for _, r := range []io.Reader{strings.NewReader(s), iotest.OneByteReader(strings.NewReader(s)), iotest.DataErrReader(strings.NewReader(s))} {
			if got := strings.Join(split(t, r, max), "|"); got != want {
				t.Fatalf("got %q want %q", got, want)
			}
		}
	})
}

func TestAReadErrorIsReturned(t *testing.T) {
	want := errors.New("broken")
	lines := process.NewLines(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(want)), 10)
	if l, err := lines.Next(); err != want {
		t.Errorf("got %q, %v", l, err)
	}
}

func FuzzLines(f *testing.F) {
	for _, s := range []string{"a\nb", "\r\n\r", strings.Repeat("x", 100)} {
		f.Add([]byte(s), 5)
	}
	f.Fuzz(func(t *testing.T, b []byte, max int) {
		if max < 0 || max > 1<<20 {
			return
		}
		if got, want := split(t, bytes.NewReader(b), max), model(string(b), max); strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("got %q want %q", got, want)
		}
	})
}

func BenchmarkLines(b *testing.B) {
	data := bytes.Repeat([]byte(`{"type":"stream_event","event":{"delta":{"text":"tick","type":"text_delta"}}}`+"\n"), 1000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		lines := process.NewLines(bytes.NewReader(data), 1<<20)
		for {
			if _, err := lines.Next(); err != nil {
				break
			}
		}
	}
}
