//go:build interop

package main

import (
	"archive/tar"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

// A release is made of one program, and installed in every way that this machine can try: by install.sh from a server,
// by npm from the tarballs without a network, by dpkg, rpm and npx in an empty root.
func TestAReleaseIsInstalled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("installs for Linux")
	}
	modules := rig.Modules(t, "@modelcontextprotocol/inspector")
	chdirRoot(t)
	programs := t.TempDir()
	if err := rig.Programs(filepath.Join(programs, "linux-"+runtime.GOARCH)).Build("./cmd/parley"); err != nil {
		t.Fatal(err)
	}
	r := release{dir: filepath.Join(t.TempDir(), "dist"), snapshot: true, programs: programs, formats: "deb"}
	if _, err := exec.LookPath("rpm"); err == nil {
		r.formats += ",rpm"
	}
	packages := r.formats
	r.formats += ",image"
	if err := r.run(t.Context(), []string{"linux/" + runtime.GOARCH}); err != nil {
		t.Fatal(err)
	}
	r.formats = packages
	t.Run("image", func(t *testing.T) { loadImage(t, r) })
	t.Run("install.sh", func(t *testing.T) { installByScript(t, r) })
	t.Run("empty root", func(t *testing.T) { installInAnEmptyRoot(t, r) })
	t.Run("npm", func(t *testing.T) { installByNPM(t, r, modules) })
}

// loadImage reads the image as Docker does, with each of its stores: by index.json, and by manifest.json, which an OCI layout does not need.
func loadImage(t *testing.T, r release) {
	files := map[string]string{}
	archives, err := filepath.Glob(filepath.Join(r.dir, "*_oci.tar"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%q, %v", archives, err)
	}
	f, err := os.Open(archives[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
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
		files[h.Name] = string(text)
	}
	name := image + ":" + r.version
	var index struct {
		Manifests []struct{ Annotations map[string]string }
	}
	decode(t, files["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != name {
		t.Errorf("the index: %s", files["index.json"])
	}
	var loads []struct {
		Config           string
		RepoTags, Layers []string
	}
	decode(t, files["manifest.json"], &loads)
	if len(loads) != 1 || !slices.Contains(loads[0].RepoTags, name) || len(loads[0].Layers) != 1 {
		t.Fatalf("Docker's manifest: %s", files["manifest.json"])
	}
	var settings struct {
		Config struct {
			User       string
			Entrypoint []string
		}
	}
	decode(t, files[loads[0].Config], &settings)
	if settings.Config.User != "65532:65532" || !slices.Equal(settings.Config.Entrypoint, []string{"/usr/bin/parley"}) {
		t.Errorf("the image's settings: %s", files[loads[0].Config])
	}
	if layer := unpack(t, files[loads[0].Layers[0]]); layer["usr/bin/parley"] == "" || layer["etc/ssl/certs/ca-certificates.crt"] == "" {
		t.Error("the image lacks the program, or the certificates")
	}
}

// machine is the home of a user who has nothing installed.
type machine struct{ home string }

// run runs a program as that user and returns what it prints.
func (m machine) run(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+m.home, "XDG_DATA_HOME=", "PARLEY_DATA_DIR=", "PARLEY_SOCKET=", "PARLEY_HTTP_PORT=0", "npm_config_cache="+filepath.Join(m.home, ".npm"),
		"npm_config_update_notifier=false")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// use sends the first message with an installed program, and stops the hub.
func (m machine) use(t *testing.T, program string) {
	t.Helper()
	out, err := m.run(t, m.home, program, "send", "echo", "hello")
	if err != nil || !strings.Contains(out, "hello") {
		t.Errorf("the first message: %v\n%s", err, out)
	}
	if out, err := m.run(t, m.home, program, "stop"); err != nil {
		t.Errorf("stop: %v\n%s", err, out)
	}
}

func installByScript(t *testing.T, r release) {
	broken := false
	files := http.FileServer(http.Dir(r.dir))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if broken && strings.HasSuffix(q.URL.Path, ".tar.gz") {
			_, _ = w.Write([]byte("something else"))
			return
		}
		files.ServeHTTP(w, q)
	}))
	defer server.Close()
	t.Setenv("PARLEY_INSTALL_URL", server.URL)
	m := machine{t.TempDir()}
	script, program := filepath.Join(r.dir, "install.sh"), filepath.Join(m.home, ".local/bin/parley")
	for range 2 { // also over an installed one
		if out, err := m.run(t, m.home, "sh", script); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	m.use(t, program)
	broken = true
	if out, err := m.run(t, m.home, "sh", script); err == nil || !strings.Contains(out, "nothing is installed") {
		t.Errorf("a changed archive: %v\n%s", err, out)
	}
	if _, err := os.Stat(program); err != nil {
		t.Errorf("the refused archive has removed the program: %v", err)
	}
	if out, err := m.run(t, m.home, "sh", script, "--uninstall"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name := range read(t, m.home) {
		if !strings.HasPrefix(name, ".a2a-hub/") {
			t.Errorf("%s is left", name)
		}
	}
}

func installByNPM(t *testing.T, r release, modules string) {
	m := machine{t.TempDir()}
	project := filepath.Join(m.home, "project")
	if err := writeFile(filepath.Join(project, "package.json"), []byte(`{"private": true}`)); err != nil {
		t.Fatal(err)
	}
	tarballs, err := filepath.Glob(filepath.Join(r.dir, "npm", "*.tgz"))
	if err != nil || len(tarballs) != 2+len(names) {
		t.Fatalf("%q, %v", tarballs, err)
	}
	if out, err := m.run(t, project, "npm", append([]string{"install", "--offline", "--no-audit", "--no-fund", "--loglevel=error"}, tarballs...)...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin := filepath.Join(project, "node_modules/.bin")
	for _, name := range append([]string{"parley"}, names...) {
		if out, err := m.run(t, project, filepath.Join(bin, name), "--version"); err != nil || !strings.HasPrefix(out, name+" ") {
			t.Errorf("%s: %v, %q", name, err, out)
		}
	}
	out, err := m.run(t, project, filepath.Join(modules, ".bin", "mcp-inspector"), "--cli", filepath.Join(bin, "parley"), "mcp", "--method", "tools/list")
	if err != nil || !strings.Contains(out, "send_message") {
		t.Errorf("the inspector: %v\n%s", err, out)
	}
	m.use(t, filepath.Join(bin, "parley"))
}

// installInAnEmptyRoot installs into a root without Go and a compiler. The times are those of a busy machine, and not limited.
func installInAnEmptyRoot(t *testing.T, r release) {
	if os.Geteuid() != 0 {
		t.Skip("an empty root needs the user root")
	}
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("dpkg is not installed")
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", "./tools/installs", "-dist", r.dir, "-only", r.formats+",npx", "-within", "0").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}
