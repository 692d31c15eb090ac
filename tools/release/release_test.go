package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/local"
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

// A whole release, with a program that stands for the built one: what it has, and that a second run gives the same bytes.
func TestASecondRunGivesTheSameFiles(t *testing.T) {
	chdirRoot(t)
	private := filepath.Join(t.TempDir(), "key.pem")
	public := writeKey(t, private)
	programs := fakePrograms(t)
	var runs [2]map[string]string
	for i := range runs {
		r := release{dir: filepath.Join(t.TempDir(), "dist"), snapshot: true, programs: programs, key: private}
		if err := r.run(t.Context(), []string{runtime.GOOS + "/" + runtime.GOARCH}); err != nil {
			t.Fatal(err)
		}
		runs[i] = read(t, r.dir)
	}
	if !maps.Equal(runs[0], runs[1]) {
		t.Errorf("the runs differ: %q and %q", slices.Sorted(maps.Keys(runs[0])), slices.Sorted(maps.Keys(runs[1])))
	}
	if !ed25519.Verify(public, []byte(runs[0]["SHA256SUMS"]), []byte(runs[0]["SHA256SUMS.sig"])) {
		t.Error("the signature is not that of the checksums")
	}
	for name, text := range runs[0] {
		if listed := strings.Contains(runs[0]["SHA256SUMS"], hexSum(text)+"  "+name+"\n"); listed == (name == "NOTES.md" || strings.HasPrefix(name, "SHA256SUMS")) {
			t.Errorf("%s: in the checksums: %v", name, listed)
		}
	}
	if bom := runs[0]["parley_"+snapshotVersion+".cdx.json"]; !strings.Contains(bom, `"pkg:golang/std@`) {
		t.Errorf("the bill of materials: %s", bom)
	}
	if p := runs[0]["parley_"+snapshotVersion+".intoto.json"]; !strings.Contains(p, `"gitCommit"`) || !strings.Contains(p, ".tar.gz") && !strings.Contains(p, ".zip") {
		t.Errorf("the provenance: %s", p)
	}
}

// chdirRoot changes to the repository's root, where the tool runs.
func chdirRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}

// writeKey writes a private key and returns the public one.
func writeKey(t *testing.T, path string) ed25519.PublicKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return public
}

// fakePrograms returns a directory with this test as the program for this machine: see TestMain.
func fakePrograms(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), runtime.GOOS+"-"+runtime.GOARCH)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(filepath.Join(dir, executable("parley", runtime.GOOS)), self); err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(dir)
}

// TestMain lets the test stand for the program: it answers what a release asks of it.
func TestMain(m *testing.M) {
	if local.Program() != "parley" && local.Program() != "a2a-hub" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "version":
		fmt.Println(`{"version":"devel"}`)
	case "man":
		err := errors.Join(os.MkdirAll(os.Args[2], 0o755), os.WriteFile(filepath.Join(os.Args[2], local.Program()+".1"), []byte("page"), 0o644))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "completion":
		fmt.Println("completion for", os.Args[2])
	}
}

// read returns the files of a directory.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(p)
		name, relErr := filepath.Rel(dir, p)
		files[filepath.ToSlash(name)] = string(text)
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func hexSum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

func TestWrongRequestsAreRefused(t *testing.T) {
	chdirRoot(t)
	rsa := filepath.Join(t.TempDir(), "rsa.pem")
	if err := os.WriteFile(rsa, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, try := range map[string]struct {
		r        release
		platform string
	}{
		"none of the platforms":  {release{snapshot: true}, "plan9/amd64"},
		"is no key in PEM":       {release{snapshot: true, key: rsa}, "linux/amd64"},
		"is no semantic version": {release{version: "1.0"}, "linux/amd64"},
		"CHANGELOG.md has no":    {release{version: "77.0.0"}, "linux/amd64"},
	} {
		try.r.dir = filepath.Join(t.TempDir(), "dist")
		if err := try.r.run(t.Context(), []string{try.platform}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTheNewestVersionIsTheFirstWithADate(t *testing.T) {
	for changelog, want := range map[string]string{
		"# Changelog\n\n## Unreleased\n\n- later\n\n## 1.1.0 - 2026-11-21\n\n## 1.0.0 - 2026-11-01\n": "1.1.0",
		"# Changelog\n\n## Unreleased\n": "",
	} {
		if got := newestVersion(changelog); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestLicencesAreRecognized(t *testing.T) {
	line, dash := strings.Repeat("=", 80)+"\n", strings.Repeat("-", 80)+"\n"
	got := licencesOf("Head\n\n" + line + "a.example/a v1\na.example/b v2\n" + dash + "Apache License\n\n" +
		line + "c v1\n" + dash + "Permission is hereby\ngranted, free of charge\n" + line + "d v1\n" + dash + "something else\n")
	if want := map[string]string{"a.example/a": "Apache-2.0", "a.example/b": "Apache-2.0", "c": "MIT"}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
