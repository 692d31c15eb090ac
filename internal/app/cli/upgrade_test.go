//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/wait"
)

// A hub is replaced when no task is being worked on; until then the command says what it waits for. A message that comes meanwhile is
// stored, and answered by the new hub, also to the command that waits for the answer.
func TestUpgradeWaitsForTasks(t *testing.T) {
	t.Parallel()
	p := newSetup(t)
	want(t, p.process(t, "upgrade"), 0, "No hub is running.")
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.process(t, "upgrade"), 0, "The hub is already version")
	id := strings.TrimSpace(p.run(t, "send", "--detach", "hangs", "hi").stdout)
	before := decode[struct{ PID int }](t, p.run(t, "status", "--format", "json"))

	cmd := p.command(t, "upgrade", "--again", "--format", "json")
	stderr := newWatched("waiting until 1 task has ended")
	stdout := newWatched("upgraded")
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-stderr.seen
	send := p.command(t, "send", "words", "still here")
	answer := newWatched("still here")
	send.Stdout, send.Stderr = answer, answer
	if err := send.Start(); err != nil {
		t.Fatal(err)
	}
	wait.Eventually(t, "the message is stored", func() bool {
		return len(decode[struct{ Tasks []any }](t, p.run(t, "tasks", "--state", "submitted", "--format", "json")).Tasks) == 1
	})
	want(t, p.run(t, "task", "cancel", id), 0, "is canceled")
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if err := send.Wait(); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	<-answer.seen
	after := decode[struct{ PID, TotalTasks int }](t, p.run(t, "status", "--format", "json"))
	if !strings.Contains(stdout.String(), `"upgraded":true`) || after.PID == before.PID || after.TotalTasks != 2 {
		t.Errorf("%s: process %d, then %+v", stdout, before.PID, after)
	}
	want(t, p.process(t, "upgrade", "--again", "--now"), 0, "The hub is now version")
}

func TestUpgradeLeavesAHubAloneWhoseDataItCannotRead(t *testing.T) {
	t.Parallel()
	p := newHub(t)
	if err := local.ReplaceFile(filepath.Join(p.dir, "format.json"), []byte(`{"format":99,"program":"9.0.0"}`)); err != nil {
		t.Fatal(err)
	}
	o := p.run(t, "upgrade")
	if o.code != 1 || !strings.Contains(o.stderr, "was written by a newer Parley (9.0.0, data format 99)") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "status"), 0, "The hub is running")
}

// fakeManager puts a program into the PATH that stands for systemctl, and records what it is called.
func fakeManager(t *testing.T, answers string) (called string) {
	t.Helper()
	dir := t.TempDir()
	called = filepath.Join(dir, "called")
	script := "#!/bin/sh\necho \"$@\" >>'" + called + "'\ncase $* in " + answers + " esac\n"
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	return called
}

func TestTheServiceReplacesAHubThatRunsWithoutIt(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is on Linux")
	}
	called := fakeManager(t, "*is-active*) echo active ;;")
	p := newSetup(t)
	want(t, p.run(t, "service", "status"), 0, "The service is not installed")
	want(t, p.process(t, "start"), 0, "The hub is running")
	want(t, p.run(t, "service", "install"), 0, "The service is installed: ")
	want(t, p.run(t, "status"), 3, "") // the fake manager has started none
	want(t, p.run(t, "service", "status"), 0, "The service is running (systemd, ")
	unit, err := os.ReadFile(filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "systemd/user/parley.service"))
	if err != nil || !strings.Contains(string(unit), `"start" "--foreground" "--socket=`+p.socket+`" "--data-dir=`+p.dir+`"`) {
		t.Errorf("%v: %s", err, unit)
	}
	want(t, p.run(t, "service", "uninstall"), 0, "The service is removed")
	if o := p.run(t, "service", "uninstall"); o.code != 1 || !strings.Contains(o.stderr, "the service is not installed") {
		t.Errorf("%+v", o)
	}
	wait.Eventually(t, "the manager is called", func() bool {
		text, err := os.ReadFile(called)
		return err == nil && strings.Contains(string(text), "--user enable --now parley.service") && strings.Contains(string(text), "--user disable --now parley.service")
	})
	if o := p.run(t, "service"); o.code != 2 {
		t.Errorf("%+v", o)
	}
}

// Without a service manager of the user, as in a container, the hub that runs is left alone.
func TestAServiceThatCannotBeInstalledLeavesTheHub(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is on Linux")
	}
	fakeManager(t, "*) echo no bus; exit 1 ;;")
	p := newHub(t)
	if o := p.run(t, "service", "install"); o.code != 1 || !strings.Contains(o.stderr, "no bus") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "status"), 0, "The hub is running")
	want(t, p.run(t, "service", "status"), 0, "The service is not installed")
}

// The unit of the deb and rpm packages is none of the user's files; the hub that it runs is known by its process.
func TestUpgradeRestartsTheServiceOfAPackage(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("systemd is on Linux")
	}
	p := newSetup(t)
	p.stopAtEnd(t)
	want(t, p.process(t, "start"), 0, "The hub is running")
	before := decode[struct{ PID int }](t, p.run(t, "status", "--format", "json"))
	called := fakeManager(t, "*MainPID*) echo "+strconv.Itoa(before.PID)+" ;;")
	want(t, p.run(t, "upgrade", "--again"), 0, "The hub is now version")
	want(t, p.run(t, "status"), 3, "") // the fake manager has started none
	text, err := os.ReadFile(called)
	if err != nil || !strings.Contains(string(text), "--user restart parley.service") {
		t.Errorf("%v: called %s", err, text)
	}
	want(t, p.process(t, "start"), 0, "The hub is running")
	fakeManager(t, "*MainPID*) echo "+strconv.Itoa(decode[struct{ PID int }](t, p.run(t, "status", "--format", "json")).PID)+" ;; *restart*) exit 1 ;;")
	o := p.process(t, "upgrade", "--again")
	if o.code != 0 || !strings.Contains(o.stderr, "the hub starts without the service") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "status"), 0, "The hub is running")
}
