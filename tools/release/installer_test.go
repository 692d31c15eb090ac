package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// served is a release with programs that are scripts, on a server, for install.sh.
type served struct {
	dir, home, script string
}

// serve makes a release whose manual has pages.
func serve(t *testing.T, home string, pages ...string) served {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("install.sh is for Linux and macOS")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	r := release{dir: t.TempDir(), version: "1.2.3", at: at}
	programs, documents := t.TempDir(), t.TempDir()
	texts := []string{"NOTICE"}
	for _, page := range pages {
		texts = append(texts, "man/"+page)
	}
	for _, name := range []string{"parley", "a2a-hub"} {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			texts = append(texts, "completions/"+name+"."+shell)
		}
	}
	for _, name := range texts {
		if err := writeFile(filepath.Join(documents, name), []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeFile(filepath.Join(programs, "parley"), []byte("#!/bin/sh\necho \"${0##*/} with "+strings.Join(pages, " ")+"\"\n")); err != nil {
		t.Fatal(err)
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	name := archiveName(r.version, platform)
	files, err := list(strings.TrimSuffix(name, ".tar.gz"), programs, documents)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.pack(name, files, packTar); err != nil {
		t.Fatal(err)
	}
	if err := r.fill("install.sh", nil); err != nil {
		t.Fatal(err)
	}
	if err := r.seal(nil); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(server.Close)
	t.Setenv("PARLEY_INSTALL_URL", server.URL)
	return served{dir: r.dir, home: home, script: filepath.Join(r.dir, "install.sh")}
}

// sh runs a script with a setting of the environment.
func (s served) sh(t *testing.T, script []byte, setting string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-s", "--"}, args...)...)
	cmd.Stdin = bytes.NewReader(script)
	cmd.Env = append(os.Environ(), "HOME="+s.home, "XDG_DATA_HOME=", "XDG_CONFIG_HOME=", setting)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s served) install(t *testing.T, setting string) (string, error) {
	t.Helper()
	script, err := os.ReadFile(s.script)
	if err != nil {
		t.Fatal(err)
	}
	return s.sh(t, script, setting)
}

// ask runs the installed program.
func (s served) ask(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(s.home, ".local/bin/a2a-hub")).CombinedOutput()
	if err != nil {
		t.Errorf("the installed program: %v, %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// An installation that cannot be finished leaves the one that is there; a finished one takes its place.
func TestInstallShReplacesAnOlderVersion(t *testing.T) {
	chdirRoot(t)
	home := filepath.Join(t.TempDir(), "home of ann")
	old := serve(t, home, "parley.1", "parley-old.1")
	if out, err := old.install(t, ""); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := old.ask(t); got != "a2a-hub with parley.1 parley-old.1" {
		t.Errorf("installed: %q", got)
	}
	next := serve(t, home, "parley.1", "parley-new.1")
	blocked := filepath.Join(home, "blocked")
	if err := writeFile(blocked, nil); err != nil {
		t.Fatal(err)
	}
	if out, err := next.install(t, "PARLEY_INSTALL_DIR="+filepath.Join(blocked, "bin")); err == nil {
		t.Errorf("installed below a file:\n%s", out)
	}
	if got := next.ask(t); got != "a2a-hub with parley.1 parley-old.1" {
		t.Errorf("after a failure: %q", got)
	}
	if out, err := next.install(t, ""); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := next.ask(t); got != "a2a-hub with parley.1 parley-new.1" {
		t.Errorf("replaced: %q", got)
	}
	if _, err := os.Stat(filepath.Join(home, ".local/share/man/man1/parley-old.1")); !os.IsNotExist(err) {
		t.Errorf("a page of the old version is left: %v", err)
	}
	script, err := os.ReadFile(next.script)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := next.sh(t, script, "", "--uninstall"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for name := range read(t, home) {
		if name != "blocked" {
			t.Errorf("%s is left", name)
		}
	}
}

// The service of the program goes with it; that of another installation stays.
func TestInstallShRemovesItsService(t *testing.T) {
	chdirRoot(t)
	for _, own := range []bool{true, false} {
		s := serve(t, filepath.Join(t.TempDir(), "home of ann"), "parley.1")
		if out, err := s.install(t, ""); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		program, unit := filepath.Join(s.home, ".local/bin/parley"), filepath.Join(s.home, ".config/systemd/user/parley.service")
		runs := program
		if !own {
			runs = "/opt/parley"
		}
		if err := writeFile(unit, []byte("[Service]\nExecStart=\""+runs+"\" \"start\"\n")); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(program, []byte("#!/bin/sh\n[ \"$*\" = \"service uninstall\" ] && rm -- \""+unit+"\"\n")); err != nil {
			t.Fatal(err)
		}
		script, err := os.ReadFile(s.script)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := s.sh(t, script, "", "--uninstall"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if _, err := os.Stat(unit); os.IsNotExist(err) != own {
			t.Errorf("the service of the program %t: %v", own, err)
		}
		if _, err := os.Stat(program); !os.IsNotExist(err) {
			t.Errorf("the program is left: %v", err)
		}
	}
}

// A download that is cut off is run by `curl | sh` as far as it has come.
func TestAPartOfInstallShDoesNothing(t *testing.T) {
	chdirRoot(t)
	s := serve(t, filepath.Join(t.TempDir(), "home"), "parley.1")
	script, err := os.ReadFile(s.script)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(script, []byte("\n"))
	for n := 1; n < len(lines)-1; n += 10 {
		_, _ = s.sh(t, bytes.Join(lines[:n], nil), "")
	}
	_, _ = s.sh(t, bytes.TrimSuffix(script, []byte("main \"$@\"\n")), "")
	if _, err := os.Stat(s.home); !os.IsNotExist(err) {
		t.Errorf("a part of the script has installed something: %v", err)
	}
}
