package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestVersionsAreSemantic(t *testing.T) {
	for v, ok := range map[string]bool{
		"1.0.0": true, "1.0.0-beta.1": true, "0.3.12": true,
		"": false, "1.0": false, "v1.0.0": false, "1.0.0+linux": false, "01.0.0": false, "latest": false,
	} {
		if err := checkVersion(v); (err == nil) != ok {
			t.Errorf("%q: %v", v, err)
		}
	}
}

func TestAReleaseNeedsItsSectionOfTheChangelog(t *testing.T) {
	const changelog = "# Changelog\n\n## Unreleased\n\n- later\n\n## 1.1.0 - 2026-11-21\n\n### Added\n\n- this\n\n## 1.0.0 - 2026-11-01\n\n- that\n\n## 0.9.0 - 2026-10-01\n\n"
	for v, want := range map[string]string{"1.1.0": "### Added\n\n- this\n", "1.0.0": "- that\n", "0.9.0": "", "2.0.0": ""} {
		got, err := notesOf(changelog, v)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", v, got, err)
		}
	}
}

// tree creates a directory with programs and one with documents.
func tree(t *testing.T) []file {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"bin/parley": "program", "docs/README.md": "text", "docs/man/parley.1": "page"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := list("top", filepath.Join(dir, "bin"), filepath.Join(dir, "docs"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

var at = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

func TestTheSameFilesGiveTheSameArchive(t *testing.T) {
	for name, pack := range map[string]func(io.Writer, []file, time.Time) error{"tar": packTar, "zip": packZip} {
		var a, b bytes.Buffer
		if err := pack(&a, tree(t), at); err != nil {
			t.Fatal(err)
		}
		if err := pack(&b, tree(t), at); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: two archives of the same files differ", name)
		}
	}
}

func TestAnArchiveHasProgramsAndDocuments(t *testing.T) {
	var b bytes.Buffer
	if err := packTar(&b, tree(t), at); err != nil {
		t.Fatal(err)
	}
	zr, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name+" "+h.FileInfo().Mode().String()+" "+string(text))
	}
	want := "top/README.md -rw-r--r-- text, top/man/parley.1 -rw-r--r-- page, top/parley -rwxr-xr-x program"
	if strings.Join(got, ", ") != want {
		t.Errorf("got %q", got)
	}
	b.Reset()
	if err := packZip(&b, tree(t), at); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(r.File) != 3 || r.File[2].Mode() != 0o755 {
		t.Errorf("%v, %v", r, err)
	}
}

// A release has one program: its other names are links, or copies where the system has no links.
func TestTheProgramHasThreeNames(t *testing.T) {
	for system, want := range map[string][]string{
		"linux":   {"top/a2a-hub -> parley", "top/nats-mcp-server -> parley", "top/parley program"},
		"windows": {"top/a2a-hub.exe program", "top/nats-mcp-server.exe program", "top/parley.exe program"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, executable("parley", system)), []byte("program"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := addNames(dir, system); err != nil {
			t.Fatal(err)
		}
		files, err := list("top", dir, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if system == "windows" {
			for _, f := range files {
				text, err := os.ReadFile(f.path)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, f.name+" "+string(text))
			}
		} else {
			got = untar(t, files)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", system, got, want)
		}
	}
}

// untar packs files and returns what is in the archive.
func untar(t *testing.T, files []file) (got []string) {
	t.Helper()
	var b bytes.Buffer
	if err := packTar(&b, files, at); err != nil {
		t.Fatal(err)
	}
	zr, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeSymlink {
			text = []byte("-> " + h.Linkname)
		}
		got = append(got, h.Name+" "+string(text))
	}
}

func TestALargeProgramFailsTheRelease(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "parley")
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for size, ok := range map[int64]bool{maxSize: true, maxSize + 1: false} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if err := checkSize(dir, "linux/amd64"); (err == nil) != ok {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestChecksumsAreThoseOfSha256sum(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := sum(&b, dir, "a"); err != nil || b.String() != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}
