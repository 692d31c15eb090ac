package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
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

// A program's other names are links, or copies where the system has no links.
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

func TestFilesThatAreNotThoseOfAnotherReleaseAreNamed(t *testing.T) {
	list := filepath.Join(t.TempDir(), "SHA256SUMS")
	if err := os.WriteFile(list, []byte("11  a\n22  b\n33  c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := verify("33  c\n22  b\n11  a\n", list); err != nil {
		t.Error(err)
	}
	if err := verify("11  a\n99  b\n44  d\n", list); err == nil || !strings.HasSuffix(err.Error(), ": b, c, d") {
		t.Errorf("%v, want the files that differ", err)
	}
	if err := verify("", list+".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want a list that is missing", err)
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

// fakePrograms returns a directory with a small program for this machine and for Windows.
func fakePrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, platform := range []string{runtime.GOOS + "-" + runtime.GOARCH, "windows-arm64"} {
		system, _, _ := strings.Cut(platform, "-")
		args := []string{"build", "-ldflags", "-s -w", "-o", filepath.Join(dir, platform, executable("parley", system)), "./tools/release/testdata/program"}
		if _, err := output(t.Context(), nil, "go", args...); err != nil {
			t.Fatal(err)
		}
	}
	return dir
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

// build makes a release with the test as its program, for this machine and for Windows.
func buildFake(t *testing.T) map[string]string {
	t.Helper()
	chdirRoot(t)
	programs := fakePrograms(t)
	r := release{dir: filepath.Join(t.TempDir(), "dist"), snapshot: true, programs: programs, version: "1.2.3"}
	if err := r.run(t.Context(), []string{runtime.GOOS + "/" + runtime.GOARCH, "windows/arm64"}); err != nil {
		t.Fatal(err)
	}
	return read(t, r.dir)
}

func TestPackageManagersGetWhatTheyRead(t *testing.T) {
	files := buildFake(t)
	here := runtime.GOOS + "_" + runtime.GOARCH
	system, cpu := npmPlatform(runtime.GOOS + "/" + runtime.GOARCH)

	npm := unpack(t, files["npm/parleyhub-parley-1.2.3.tgz"])
	var manifest struct {
		Name, Version, MCPName string
		Bin                    map[string]string
		OptionalDependencies   map[string]string
		Scripts                map[string]string
	}
	decode(t, npm["package/package.json"], &manifest)
	if manifest.Name != npmName || manifest.Version != "1.2.3" || manifest.MCPName != mcpName || manifest.Scripts != nil || len(manifest.OptionalDependencies) != 2 ||
		manifest.OptionalDependencies[npmName+"-win32-arm64"] != "1.2.3" {
		t.Errorf("the npm package: %+v", manifest)
	}
	for name, path := range manifest.Bin {
		if text := npm["package/"+path]; !strings.HasPrefix(text, "#!/usr/bin/env node\n") || !strings.Contains(text, `"`+name+`"`) {
			t.Errorf("%s: %q", name, text)
		}
	}
	for _, name := range names {
		files := unpack(t, files["npm/"+name+"-1.2.3.tgz"])
		var other struct {
			Name              string
			Bin, Dependencies map[string]string
		}
		decode(t, files["package/package.json"], &other)
		if other.Name != name || other.Dependencies[npmName] != "1.2.3" || !strings.Contains(files["package/"+other.Bin[name]], npmName+`/bin/run.js")("`+name+`")`) || files["package/schema/mcp-config.schema.json"] == "" {
			t.Errorf("the package %s: %+v", name, other)
		}
	}
	var platform struct{ OS, CPU []string }
	program := unpack(t, files["npm/parleyhub-parley-"+system+"-"+cpu+"-1.2.3.tgz"])
	decode(t, program["package/package.json"], &platform)
	if !slices.Equal(platform.OS, []string{system}) || !slices.Equal(platform.CPU, []string{cpu}) || program["package/bin/"+executable("parley", runtime.GOOS)] == "" {
		t.Errorf("the package of a platform: %+v", platform)
	}

	var entry struct {
		Name, Description string
		Packages          []struct{ RegistryType, Identifier, FileSha256 string }
	}
	decode(t, files["server.json"], &entry)
	if entry.Name != mcpName || len(entry.Description) > 100 || len(entry.Packages) != 4 || entry.Packages[3].FileSha256 != hexSum(files["parley_1.2.3_windows_arm64.mcpb"]) {
		t.Errorf("the registry's entry: %+v", entry)
	}
	if names := zipped(t, files["parley_1.2.3_windows_arm64.zip"]); !slices.Contains(names, "parley_1.2.3_windows_arm64/parley.exe") || slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "/a2a-hub.exe") }) {
		t.Errorf("the archive for Windows has %q, want one program", names)
	}
	var scoop struct {
		Architecture map[string]struct{ URL, Hash string }
		PreInstall   []string `json:"pre_install"`
		Bin          []string
	}
	decode(t, files["parley.json"], &scoop)
	if a := scoop.Architecture["arm64"]; a.Hash != hexSum(files["parley_1.2.3_windows_arm64.zip"]) || !strings.HasSuffix(a.URL, "/v1.2.3/parley_1.2.3_windows_arm64.zip") {
		t.Errorf("scoop's manifest: %+v", scoop)
	}
	for _, name := range names {
		if !slices.Contains(scoop.Bin, name+".exe") || !strings.Contains(strings.Join(scoop.PreInstall, "\n"), "'"+name+"'") || !strings.Contains(files["install.ps1"], "'"+name+".exe'") {
			t.Errorf("%s is not made on Windows: %+v", name, scoop)
		}
	}
	// `parley stop` ends with success, and is final.
	if !strings.Contains(files["parley.rb"], "keep_alive successful_exit: false") {
		t.Errorf("the formula's service: %s", files["parley.rb"])
	}
	for _, name := range []string{"install.sh", "install.ps1", "compose.yaml", "parley.rb"} {
		if text := files[name]; !strings.Contains(text, "1.2.3") || strings.Contains(text, "{{") || strings.Contains(text, "<no value>") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if runtime.GOOS != "windows" && !strings.Contains(files["parley.rb"], hexSum(files["parley_1.2.3_"+here+".tar.gz"])) {
		t.Errorf("the formula: %s", files["parley.rb"])
	}
}

// zipped returns the names of the files of a zip archive.
func zipped(t *testing.T, archive string) (names []string) {
	t.Helper()
	r, err := zip.NewReader(strings.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		names = append(names, f.Name)
	}
	return names
}

// unpack returns the files of a compressed tar archive.
func unpack(t *testing.T, archive string) map[string]string {
	t.Helper()
	zr, err := gzip.NewReader(strings.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
}

// The plugins in the tree have one version, since a release gives it to all of them.
func TestThePluginsHaveOneVersion(t *testing.T) {
	chdirRoot(t)
	if err := checkPlugins("1.0.0"); err != nil {
		t.Error(err)
	}
	if err := checkPlugins("9.9.9"); err == nil || !strings.Contains(err.Error(), "set it to 9.9.9") {
		t.Errorf("%v, want a plugin's version refused", err)
	}
}

func TestAChangelogWithoutAVersionIsExplained(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("CHANGELOG.md", []byte("# Changelog\n\n## Unreleased\n\n- later\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := new(release).identify(t.Context()); err == nil || !strings.Contains(err.Error(), "-snapshot") {
		t.Errorf("%v, want a remedy", err)
	}
}
