package runner_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/runner"
)

func file(name, mediaType, content string) *a2a.Part {
	p := a2a.NewRawPart([]byte(content))
	p.Filename, p.MediaType = name, mediaType
	return p
}

func build(t *testing.T, dir string, parts ...*a2a.Part) string {
	t.Helper()
	got, err := runner.BuildPrompt(runner.Turn{TaskID: "task-1", Parts: parts}, dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTextIsPassedUnchanged(t *testing.T) {
	for _, text := range []string{"hello", "", "--help", "a\n\n  b\t", "zwölf €"} {
		if got := build(t, "", a2a.NewTextPart(text)); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := build(t, "", a2a.NewTextPart("a"), nil, a2a.NewTextPart("b")); got != "a\n\nb" {
		t.Errorf("two parts: %q", got)
	}
	if got := runner.WithRole("role", "x"); got != "role\n\nx" || runner.WithRole("", "x") != "x" {
		t.Errorf("with a role: %q", got)
	}
}

func TestPartsThatAreNotTextAreDescribed(t *testing.T) {
	link := a2a.NewFileURLPart("https://example.org/a\nb.png", "image/png")
	link.Filename = "a.png"
	named := a2a.NewTextPart("package x\n")
	named.Filename = "x.go"
	for want, part := range map[string]*a2a.Part{
		"```json\n{\n  \"a\": 1\n}\n```":                                              a2a.NewDataPart(map[string]any{"a": 1}),
		"[Attached link to a file: a.png (image/png): https://example.org/a b.png]":   link,
		"[Attached file: x.go]\n```\npackage x\n```":                                  named,
		"[Attached file: a.md (text/markdown)]\n````\n```\nx\n```\n````":              file("a.md", "text/markdown", "```\nx\n```"),
		"[Attached file: a b (application/json)]\n```\n{}\n```":                       file("a\x1bb", "application/json", "{}"),
		"[Attached file: without a name, 2 bytes; this agent does not take files]":    file("", "", "\x00\x01"),
		"[Attached file: i.png (image/png), 3 bytes; this agent does not take files]": file("i.png", "image/png", "png"),
		"[A part of a kind that is not known here was left out]":                      {},
	} {
		if got := build(t, "", part); got != want {
			t.Errorf("got %q want %q", got, want)
		}
	}
}

func TestFilesAreSavedUnderSafeNames(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		"photo.png": "photo.png", "../../etc/passwd": "passwd", `C:\x\y.exe`: "y.exe", "": "file", "..": "file", "-rf": "-rf",
		".bashrc": ".bashrc", "a b;$(id)\n.sh": "a_b___id__.sh", "ünï.txt": "_n_.txt", strings.Repeat("x", 300) + ".go": ".go",
		"CON": "CON", "trailing.": "trailing",
	} {
		got := build(t, dir, file(name, "application/octet-stream", "\x00data "+name))
		_, path, _ := strings.Cut(strings.TrimSuffix(got, "]"), "saved as ")
		base := filepath.Base(path)
		if !strings.HasPrefix(path, ".parley/inbox/task-1/") || !strings.Contains(base, want) || !strings.Contains(base, "01-") || len(base) > 120 {
			t.Errorf("%q is saved as %q", name, path)
		}
		if b, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(b) != "\x00data "+name {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, ".parley", ".gitignore")); string(b) != "*\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	info, err := os.Stat(filepath.Join(dir, ".parley", "inbox", "task-1"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestSavedFilesDoNotFollowLinks(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, ".parley")); err != nil {
		t.Fatal(err)
	}
	_, err := runner.BuildPrompt(runner.Turn{TaskID: "t", Parts: []*a2a.Part{file("x", "", "\x00")}}, dir, 1000)
	if err == nil || err.Code != runner.CodeInternal || strings.Contains(err.Message, outside) {
		t.Errorf("%v", err)
	}
	if files, _ := os.ReadDir(outside); len(files) != 0 {
		t.Errorf("a file was written outside the directory: %v", files)
	}
}

func TestAHostileTaskIDIsNoPath(t *testing.T) {
	dir := t.TempDir()
	for _, id := range []string{"../../x", "", "a/b", "-x", strings.Repeat("y", 200)} {
		_, err := runner.BuildPrompt(runner.Turn{TaskID: id, Parts: []*a2a.Part{file("x", "", "\x00")}}, dir, 1000)
		if err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	folders, err := os.ReadDir(filepath.Join(dir, ".parley", "inbox"))
	if err != nil || len(folders) != 5 {
		t.Errorf("%v, %v", folders, err)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	many := make([]*a2a.Part, 101)
	for i := range many {
		many[i] = file("x", "", "\x00")
	}
	for name, parts := range map[string][]*a2a.Part{
		"text":       {a2a.NewTextPart(strings.Repeat("x", 500)), a2a.NewTextPart(strings.Repeat("x", 501))},
		"many files": many,
		"big files":  {file("x", "", "\x00"+strings.Repeat("x", 64<<20))},
	} {
		if _, err := runner.PromptText(parts, 1001); err == nil || err.Code != runner.CodeLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := runner.PromptText([]*a2a.Part{a2a.NewTextPart(strings.Repeat("x", 1000))}, 1000); err != nil {
		t.Errorf("files at the limit: %v", err)
	}
}

func TestFileContentCannotEndItsFence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringMatching("[`a\n]{0,40}").Draw(t, "content")
		got, err := runner.PromptText([]*a2a.Part{file("f", "text/plain", content)}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(got, "\n")
		marks := lines[1]
		for _, line := range lines[2 : len(lines)-1] {
			if strings.HasPrefix(line, marks) {
				t.Fatalf("the line %[2]q ends the fence %[1]s", marks, line)
			}
		}
		if lines[len(lines)-1] != marks {
			t.Fatalf("%q does not end with its fence", got)
		}
	})
}

func FuzzBuildPrompt(f *testing.F) {
	f.Add("a.txt", "text/plain", []byte("x"), "task")
	f.Add("../../x", "image/png", []byte{0, 255}, "../task")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, name, mediaType string, content []byte, task string) {
		parts := []*a2a.Part{file(name, mediaType, string(content))}
		got, err := runner.BuildPrompt(runner.Turn{TaskID: task, Parts: parts}, dir, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(got) {
			t.Errorf("%q", got)
		}
		entries, rerr := os.ReadDir(dir)
		if rerr != nil || len(entries) > 1 {
			t.Errorf("%v, %v", entries, rerr)
		}
	})
}
