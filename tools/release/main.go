// Release builds the files of a release into dist: for each platform an archive with the program, the manual pages, the
// completions and the licences; the checksums; the list of the modules that are linked (CycloneDX); how everything was made
// (SLSA provenance); and the release's section of the changelog. With a key, the checksums are signed.
//
//	go run ./tools/release                                  # the newest version of CHANGELOG.md
//	go run ./tools/release -version 1.2.3 -key key.pem
//	go run ./tools/release -snapshot -only linux/amd64      # to try it: the tree may have changes
//	go run ./tools/release -version 1.2.3 -verify SHA256SUMS # compare with the files of another one, such as a published release
//	go run ./tools/release -size                            # only build the program for linux/amd64 and check its size
//	go run ./tools/release -program DIR                     # only build the program for this computer, into a directory
//
// The tree must be clean, and the version semantic and in CHANGELOG.md. The same commit gives the same bytes on every
// machine: times in the archives are the commit's. Run `go run ./tools/check` before. A program that is larger than maxSize
// on linux/amd64 fails the release.
package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/parleyhub/parley/docs"
	"github.com/parleyhub/parley/internal/api/site"
	"github.com/parleyhub/parley/internal/api/site/render"
	"github.com/parleyhub/parley/internal/base/local"
)

// allPlatforms are the platforms of the programs, as GOOS/GOARCH.
var allPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "the version, without a v in front (default the newest one of CHANGELOG.md)")
	flag.StringVar(&r.dir, "out", "dist", "the directory, which must not exist yet")
	only := flag.String("only", strings.Join(allPlatforms, ","), "the platforms, separated by commas")
	flag.BoolVar(&r.snapshot, "snapshot", false, "allow changes in the tree, and a version that CHANGELOG.md does not have (default "+snapshotVersion+")")
	flag.StringVar(&r.programs, "programs", "", "take the programs from this directory, as SYSTEM-ARCHITECTURE/parley, and do not build them: they have been built and signed")
	flag.StringVar(&r.key, "key", "", "sign the checksums with this private key: Ed25519, PKCS #8 in PEM")
	flag.StringVar(&r.formats, "packages", "deb,rpm,image", "the kinds of packages for Linux besides archives; empty for none")
	flag.StringVar(&r.verify, "verify", "", "fail if a file differs from what this list of checksums says")
	size := flag.Bool("size", false, "build the program for linux/amd64, check its size, and keep nothing")
	program := flag.String("program", "", "only build the program for this computer into this directory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	run := func() error { return r.run(ctx, strings.Split(*only, ",")) }
	switch {
	case *size:
		run = func() error { return r.size(ctx) }
	case *program != "":
		run = func() error { return r.keepProgram(ctx, *program) }
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// snapshotVersion is the version of a snapshot that has no other.
const snapshotVersion = "0.0.0-snapshot"

// release is the release to build.
type release struct {
	version  string // 1.2.3
	dir      string
	snapshot bool
	programs string // the directory of programs that are built already, "" to build them
	key      string // the file of the private key, "" for none
	verify   string // the checksums of another release, "" for none
	formats  string // of the packages that tools/packages makes, "" for none
	commit   string
	at       time.Time // of the commit
}

// run builds the release. All that it knows is decided by the commit, so that a second run gives the same files.
func (r *release) run(ctx context.Context, platforms []string) error {
	for _, p := range platforms {
		if !slices.Contains(allPlatforms, p) {
			return fmt.Errorf("%q is none of the platforms %s", p, strings.Join(allPlatforms, ", "))
		}
	}
	signer, err := readKey(r.key) // before the long build
	if err != nil {
		return err
	}
	notes, err := r.identify(ctx)
	if err != nil {
		return err
	}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.dir, "NOTES.md"), []byte(notes), 0o644); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "parley-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := r.makeAll(ctx, work, platforms); err != nil {
		return err
	}
	return r.seal(signer)
}

// makeAll writes everything but the checksums.
func (r *release) makeAll(ctx context.Context, work string, platforms []string) error {
	if err := r.documents(ctx, work); err != nil {
		return err
	}
	var programs []string
	for _, platform := range platforms {
		fmt.Println(platform)
		program, err := r.archive(ctx, work, platform)
		if err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		programs = append(programs, program)
	}
	return errors.Join(r.writeMaterials(programs), r.writeNPM(work, platforms), r.writeManifests(work, platforms), r.writePackages(ctx, work, platforms))
}

// writePackages makes the packages that need libraries of their own, with a tool that has its own modules: deb, rpm and the image.
func (r *release) writePackages(ctx context.Context, work string, platforms []string) error {
	var arches []string
	for _, p := range platforms {
		if arch, ok := strings.CutPrefix(p, "linux/"); ok {
			arches = append(arches, arch)
		}
	}
	if r.formats == "" || len(arches) == 0 {
		return nil
	}
	out, err := filepath.Abs(r.dir)
	if err != nil {
		return err
	}
	_, err = output(ctx, nil, "go", "run", "-modfile=tools/packages.mod", "tools/packages/main.go", "tools/packages/linux.go", "tools/packages/image.go", "-version", r.version, "-time", strconv.FormatInt(r.at.Unix(), 10),
		"-work", work, "-out", out, "-formats", r.formats, "-arch", strings.Join(arches, ","))
	return err
}

// identify finds out the version, the time and the notes of the release.
func (r *release) identify(ctx context.Context) (notes string, err error) {
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return "", err
	}
	changelog := string(text)
	if r.version == "" && r.snapshot {
		r.version = snapshotVersion
	}
	if r.version == "" {
		if r.version = newestVersion(changelog); r.version == "" {
			return "", errors.New("CHANGELOG.md has no version yet: give its first one a part \"## 1.2.3 - YYYY-MM-DD\", or try a release with -snapshot")
		}
	}
	if err := checkVersion(r.version); err != nil {
		return "", err
	}
	if notes, err = notesOf(changelog, r.version); err != nil && !r.snapshot {
		return "", err
	}
	if err := checkPlugins(r.version); err != nil && !r.snapshot {
		return "", err
	}
	if r.commit, r.at, err = commit(ctx, r.snapshot); err != nil {
		return "", err
	}
	return notes, nil
}

// seal writes the provenance and the checksums of all files, and signs the latter.
func (r *release) seal(signer ed25519.PrivateKey) error {
	if err := r.writeProvenance(); err != nil {
		return err
	}
	names, err := contents(r.dir)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, name := range names {
		if err := sum(&sums, r.dir, name); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, sumsName), sums.Bytes(), 0o644); err != nil {
		return err
	}
	if signer != nil {
		if err := os.WriteFile(filepath.Join(r.dir, sumsName+".sig"), ed25519.Sign(signer, sums.Bytes()), 0o644); err != nil {
			return err
		}
	}
	return verify(sums.String(), r.verify)
}

// verify returns an error that names the files whose checksums are not those of a list, or which only one of the two has.
func verify(sums, path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	have, want := sumsOf(sums), sumsOf(string(text))
	var differ []string
	for name, sum := range have {
		if want[name] != sum {
			differ = append(differ, name)
		}
	}
	for name := range want {
		if have[name] == "" {
			differ = append(differ, name)
		}
	}
	if len(differ) > 0 {
		slices.Sort(differ)
		return fmt.Errorf("%d files are not those of %s: %s", len(differ), path, strings.Join(differ, ", "))
	}
	fmt.Printf("all %d files are those of %s\n", len(have), path)
	return nil
}

// sumsOf returns the checksums of a list by the names of the files.
func sumsOf(list string) map[string]string {
	sums := map[string]string{}
	for line := range strings.Lines(list) {
		if sum, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			sums[name] = sum
		}
	}
	return sums
}

// sumsName is the file of the checksums.
const sumsName = "SHA256SUMS"

// contents lists the files of a directory of a release, relative to it, without the notes and what is written last.
func contents(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if name != "NOTES.md" {
			names = append(names, filepath.ToSlash(name))
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// size builds the program for linux/amd64 and checks its size.
func (r *release) size(ctx context.Context) error {
	const platform = "linux/amd64"
	return r.buildApart(ctx, platform, func(dir string) error { return checkSize(dir, platform) })
}

// keepProgram builds the program for this computer into a directory.
func (r *release) keepProgram(ctx context.Context, keep string) error {
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return err
	}
	name := executable(local.ProgramParley, runtime.GOOS)
	return r.buildApart(ctx, runtime.GOOS+"/"+runtime.GOARCH, func(dir string) error {
		return copyProgram(filepath.Join(keep, name), filepath.Join(dir, name))
	})
}

// buildApart builds a platform's program into a directory that is removed after use.
func (r *release) buildApart(ctx context.Context, platform string, use func(dir string) error) error {
	work, err := os.MkdirTemp("", "parley-program-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dir := filepath.Join(work, "program")
	if err := r.build(ctx, dir, platform); err != nil {
		return err
	}
	return use(dir)
}

func checkVersion(v string) error {
	if !semver.IsValid("v"+v) || semver.Build("v"+v) != "" || semver.Canonical("v"+v) != "v"+v {
		return fmt.Errorf("%q is no semantic version of three numbers, such as 1.2.3 or 1.2.3-beta.1", v)
	}
	return nil
}

// notesOf returns a version's section of the changelog.
func notesOf(changelog, version string) (string, error) {
	_, rest, found := strings.Cut("\n"+changelog, "\n## "+version+" ")
	if !found {
		return "", fmt.Errorf("CHANGELOG.md has no part %q", "## "+version+" - YYYY-MM-DD")
	}
	_, part, _ := strings.Cut(rest, "\n") // the date
	part, _, _ = strings.Cut(part, "\n## ")
	if part = strings.TrimSpace(part); part == "" {
		return "", fmt.Errorf("CHANGELOG.md says nothing of %s", version)
	}
	return part + "\n", nil
}

// newestVersion returns the first version of the changelog, "" without one.
func newestVersion(changelog string) string {
	for line := range strings.Lines(changelog) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			if v, _, dated := strings.Cut(strings.TrimSpace(title), " - "); dated {
				return v
			}
		}
	}
	return ""
}

// commit returns the commit and its time. It fails if the tree has uncommitted changes, unless they are allowed.
func commit(ctx context.Context, changes bool) (string, time.Time, error) {
	changed, err := output(ctx, nil, "git", "status", "--porcelain")
	if err != nil {
		return "", time.Time{}, err
	}
	if len(changed) > 0 && !changes {
		return "", time.Time{}, fmt.Errorf("the tree is not what is committed:\n%s", changed)
	}
	out, err := output(ctx, nil, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return "", time.Time{}, err
	}
	id, at, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	return id, time.Unix(seconds, 0).UTC(), err
}

// documents writes to work the documents that every archive contains: texts, manual pages and shell completions. This
// machine's programs write the latter two, and must report the release's version.
func (r *release) documents(ctx context.Context, work string) error {
	here := filepath.Join(work, "here")
	if err := r.program(ctx, here, runtime.GOOS+"/"+runtime.GOARCH); err != nil {
		return err
	}
	if err := addNames(here, runtime.GOOS); err != nil {
		return err
	}
	parley := filepath.Join(here, executable("parley", runtime.GOOS))
	out, err := output(ctx, nil, parley, "version", "--format", "json")
	if err != nil {
		return err
	}
	var said struct{ Version string }
	if err := json.Unmarshal(out, &said); err != nil || said.Version != r.version && !(r.snapshot && r.programs != "") {
		return errors.Join(fmt.Errorf("the program calls itself version %q", said.Version), err)
	}
	docs := filepath.Join(work, "docs")
	if err := os.MkdirAll(filepath.Join(docs, "completions"), 0o755); err != nil {
		return err
	}
	for _, program := range []string{"parley", "a2a-hub"} {
		path := filepath.Join(here, executable(program, runtime.GOOS))
		if _, err := output(ctx, nil, path, "man", filepath.Join(docs, "man")); err != nil {
			return err
		}
		for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
			script, err := output(ctx, nil, path, "completion", shell)
			if err == nil {
				err = os.WriteFile(filepath.Join(docs, "completions", program+"."+shell), script, 0o644)
			}
			if err != nil {
				return err
			}
		}
	}
	for _, name := range []string{"README.md", "CHANGELOG.md", "LICENSE", "NOTICE"} {
		text, err := os.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(docs, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// archive builds the program for a platform and packs it with the documents. It returns the program's path.
func (r *release) archive(ctx context.Context, work, platform string) (program string, err error) {
	system, arch, _ := strings.Cut(platform, "/")
	bin := filepath.Join(work, system+"-"+arch)
	if err := r.programOnce(ctx, work, bin, platform); err != nil {
		return "", err
	}
	if r.programs == "" {
		err = checkSize(bin, platform)
	}
	name, pack := archiveName(r.version, platform), packer(packTar)
	if system == "windows" {
		pack = packZip // without the further names: a zip has no links, and copies made it three times as large
	} else {
		err = errors.Join(err, addNames(bin, system))
	}
	if err != nil {
		return "", err
	}
	files, err := list(strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz"), bin, filepath.Join(work, "docs"))
	if err != nil {
		return "", err
	}
	return filepath.Join(bin, executable(local.ProgramParley, system)), r.pack(name, files, pack)
}

// archiveName returns the name of a platform's archive.
func archiveName(version, platform string) string {
	name := "parley_" + version + "_" + strings.ReplaceAll(platform, "/", "_")
	if strings.HasPrefix(platform, "windows/") {
		return name + ".zip"
	}
	return name + ".tar.gz"
}

// programOnce puts the program for a platform into a directory: for this machine the one that has written the documents.
func (r *release) programOnce(ctx context.Context, work, dir, platform string) error {
	if platform != runtime.GOOS+"/"+runtime.GOARCH {
		return r.program(ctx, dir, platform)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := executable(local.ProgramParley, runtime.GOOS)
	return copyProgram(filepath.Join(dir, name), filepath.Join(work, "here", name))
}

// program puts the program for a platform into a directory.
func (r *release) program(ctx context.Context, dir, platform string) error {
	if r.programs == "" {
		return r.build(ctx, dir, platform)
	}
	system, arch, _ := strings.Cut(platform, "/")
	name := executable(local.ProgramParley, system)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return copyProgram(filepath.Join(dir, name), filepath.Join(r.programs, system+"-"+arch, name))
}

// buildTags leave out what the programs do not use. The tracing pages of gRPC link html/template, and text/template with
// it, which keeps the linker from removing unused methods: five megabytes. prebuiltsite takes the documentation's site as writeSite
// has made it, without the Markdown and its parser.
const buildTags = "grpcnotrace,prebuiltsite"

// names are the further names of the program.
var names = []string{local.ProgramHub, local.ProgramMCPServer}

// addNames adds the further names of the program to the directory that it is in: symbolic links, and copies on Windows, where symbolic
// links need privileges. The installers for Windows make hard links.
func addNames(dir, system string) error {
	program := executable(local.ProgramParley, system)
	for _, name := range names {
		path := filepath.Join(dir, executable(name, system))
		if system != "windows" {
			if err := os.Symlink(program, path); err != nil {
				return err
			}
			continue
		}
		if err := copyProgram(path, filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	return nil
}

func copyProgram(to, from string) error {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	return errors.Join(copyFrom(f, from), f.Close())
}

// maxSize is the size in bytes that the program for linux/amd64 may have: 40 MiB. docs/PERFORMANCE.md has what fills it.
const maxSize = 40 << 20

// checkSize returns an error if the program for linux/amd64 is too large. Its size depends on the sources and the version of Go
// only.
func checkSize(dir, platform string) error {
	if platform != "linux/amd64" {
		return nil
	}
	info, err := os.Stat(filepath.Join(dir, local.ProgramParley))
	if err != nil {
		return err
	}
	fmt.Printf("  %s: %d bytes\n", info.Name(), info.Size())
	if info.Size() > maxSize {
		return fmt.Errorf("the program has %d bytes, %d more than it may have: look at what has been linked, see docs/PERFORMANCE.md", info.Size(), info.Size()-maxSize)
	}
	return nil
}

// rarelyRun are packages whose code runs at a start or once a request, and then waits for a disk, a network or an agent. They
// are compiled without inlining, which copies functions for speed: a megabyte.
var rarelyRun = []string{
	"github.com/parleyhub/parley/internal/app/...", "charm.land/...", "github.com/charmbracelet/...", "github.com/lucasb-eyer/...", "github.com/a2aproject/...", "github.com/coder/acp-go-sdk/...", "github.com/goccy/go-yaml/...",
	"github.com/google/jsonschema-go/...", "github.com/modelcontextprotocol/...", "github.com/nats-io/jwt/...", "github.com/prometheus/...",
	"github.com/spf13/...", "github.com/yosida95/...", "google.golang.org/...",
	"crypto/tls", "crypto/x509/...", "encoding/asn1", "encoding/gob", "expvar", "github.com/cenkalti/...", "github.com/google/go-tpm/...", "go/...",
	"html/...", "mime/...", "text/...", "golang.org/x/net/...", "golang.org/x/oauth2/...", "net/http/httputil",
	"github.com/parleyhub/parley/internal/config", "github.com/parleyhub/parley/internal/federation/...",
	"github.com/parleyhub/parley/internal/mcp/config", "github.com/parleyhub/parley/internal/mcp/delegation",
	"github.com/parleyhub/parley/internal/mcp/mounts", "github.com/parleyhub/parley/internal/mcp/server", "github.com/parleyhub/parley/internal/senders", "github.com/parleyhub/parley/internal/sessions/...",
	"github.com/parleyhub/parley/internal/agentnet/...", "github.com/parleyhub/parley/discovery/...", "github.com/parleyhub/parley/registry/...", "github.com/parleyhub/parley/telemetry/...",
	"github.com/parleyhub/parley/internal/bus/damage", "github.com/parleyhub/parley/internal/queues", "github.com/parleyhub/parley/internal/hub/push", "github.com/parleyhub/parley/internal/hub/process", "github.com/parleyhub/parley/internal/base/statefile",
	"github.com/parleyhub/parley/internal/hub/runner/...", "github.com/parleyhub/parley/negotiation", "github.com/parleyhub/parley/swarm/...", "github.com/parleyhub/parley/ralph",
	"github.com/parleyhub/parley/internal/base/entries", "github.com/parleyhub/parley/internal/base/local", "github.com/parleyhub/parley/identity",
	"github.com/clipperhouse/...", "github.com/mattn/...", "github.com/muesli/...", "github.com/nats-io/nats-server/v2/conf", "github.com/nats-io/nats-server/v2/server/certidp", "github.com/rivo/...", "github.com/sony/...", "github.com/xo/...",
	"github.com/parleyhub/parley/internal/third_party/...", "github.com/parleyhub/parley/internal/api/client", "github.com/parleyhub/parley/internal/api/conformance",
	"github.com/parleyhub/parley/internal/api/screens", "github.com/parleyhub/parley/internal/api/ui", "github.com/parleyhub/parley/internal/hub/workdir", "github.com/gofrs/flock",
	"github.com/yuin/...", "github.com/parleyhub/parley/hyperswarm/hyperdht/...", "math/big", "github.com/nats-io/nkeys", "github.com/google/uuid", "github.com/spf13/pflag", "os/exec", "os/user", "flag", "log/slog", "net/url",
}

// build builds the program into dir. Functions begin at 16 bytes and not at 32: a third of a megabyte.
func (r *release) build(ctx context.Context, dir, platform string) error {
	system, arch, _ := strings.Cut(platform, "/")
	overlay, err := writeSite(dir, r.version)
	if err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", buildTags, "-overlay", overlay}
	for _, packages := range rarelyRun {
		args = append(args, "-gcflags="+packages+"=-l")
	}
	const names = " -X github.com/parleyhub/parley/internal/app/version."
	_, err = output(ctx, slices.Concat(settled, []string{"GOOS=" + system, "GOARCH=" + arch}), "go", append(args,
		"-ldflags", "-s -w -funcalign=16"+names+"release="+r.version+names+"revision="+r.commit, "-o", dir+string(filepath.Separator), "./cmd/parley")...)
	return err
}

// settled are the variables of the compiler that change its output, whatever the machine has set. The commit is not taken from the
// compiler, which calls a tree changed once the release is written into it.
var settled = []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GOAMD64=v1", "GOARM64=v8.0"}

// sitePath is the file of the sources that a release's program embeds as the documentation's site.
const sitePath = "internal/api/site/pages.json.gz"

// writeSite makes the documentation's site and returns the file for -overlay that lays it over the sources. Both are beside dir,
// whose files become those of an archive.
func writeSite(dir, version string) (overlay string, err error) {
	files, err := render.Build(docs.Files, version)
	if err != nil {
		return "", err
	}
	packed, err := site.Pack(files)
	if err != nil {
		return "", err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	target, err := filepath.Abs(filepath.FromSlash(sitePath))
	if err != nil {
		return "", err
	}
	pages := dir + "-site.json.gz"
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {target: pages}})
	if err != nil {
		return "", err
	}
	overlay = dir + "-overlay.json"
	return overlay, errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.WriteFile(pages, packed, 0o644), os.WriteFile(overlay, replace, 0o644))
}

func executable(program, system string) string {
	if system == "windows" {
		return program + ".exe"
	}
	return program
}

// output runs a program and returns what it prints.
func output(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, stderr.Bytes())
	}
	return out, nil
}
