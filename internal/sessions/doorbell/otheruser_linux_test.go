package doorbell_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/sessions/doorbell"
	"github.com/parleyhub/parley/internal/sessions/presence"
	"github.com/parleyhub/parley/internal/testbed/otheruser"
)

// asOther runs a command of the shell as another user of the computer.
func asOther(t *testing.T, command string, args ...string) error {
	t.Helper()
	otheruser.Require(t)
	cmd := exec.Command("/bin/sh", append([]string{"-c", command, "sh"}, args...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otheruser.UID, Gid: otheruser.UID}}
	return cmd.Run()
}

// What stands at the name of a session's file and is no file of ours is neither written nor followed.
func TestAPlantedFileIsNoBell(t *testing.T) {
	dir := shortDir(t)
	victim := filepath.Join(shortDir(t), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := doorbell.NewFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := presence.Session{Vendor: presence.Claude, Process: self()}
	planted := filepath.Join(dir, fmt.Sprintf("%d-%s", s.Process.PID, s.Process.Start))
	for name, plant := range map[string]func() error{
		"a link to a file":     func() error { return os.Symlink(victim, planted) },
		"a link to nothing":    func() error { return os.Symlink(victim+"-new", planted) },
		"a pipe":               func() error { return syscall.Mkfifo(planted, 0o600) },
		"a directory":          func() error { return os.Mkdir(planted, 0o700) },
		"a link to a new file": func() error { return os.Symlink("../"+filepath.Base(dir)+"-new", planted) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if path, err := f.Watch(s); err == nil {
			t.Errorf("%s: the session watches %s", name, path)
		}
		if o, err := f.Ring(t.Context(), s, "hello", later(t)); o != doorbell.Unable || err == nil {
			t.Errorf("%s: %v, %v", name, o, err)
		}
		if err := os.Remove(planted); err != nil {
			t.Fatal(err)
		}
	}
	if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" {
		t.Errorf("the file is %q, %v", data, err)
	}
	for _, path := range []string{victim + "-new", dir + "-new"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

// What a hook reports as its session's process names no file elsewhere.
func TestAProcessIsNoPath(t *testing.T) {
	root := shortDir(t)
	f, err := doorbell.NewFile(filepath.Join(root, "bells"))
	if err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(root, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, start := range []string{"x/../../victim", "x/../../new", "/../../victim", "..", "1 2", "1\n"} {
		s := presence.Session{Vendor: presence.Claude, Process: presence.Process{PID: os.Getpid(), Start: start}}
		if path, err := f.Watch(s); err == nil {
			t.Errorf("%q watches %s", start, path)
		}
		if o, err := f.Ring(t.Context(), s, "hello", later(t)); o != doorbell.Unable || err == nil {
			t.Errorf("%q: %v, %v", start, o, err)
		}
	}
	left, err := os.ReadDir(root)
	if data, readErr := os.ReadFile(victim); err != nil || readErr != nil || len(left) != 2 || string(data) != "precious" {
		t.Errorf("there are %v; the file is %q (%v, %v)", left, data, err, readErr)
	}
}

func TestTheDirectoryOfBellsIsTheUsersOwn(t *testing.T) {
	open := filepath.Join(shortDir(t), "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	_, err := doorbell.NewFile(open)
	if info, statErr := os.Lstat(open); err != nil || statErr != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v; %v, %v", info.Mode(), err, statErr)
	}
	link := open + "-link"
	if err := os.Symlink(open, link); err != nil {
		t.Fatal(err)
	}
	if _, err := doorbell.NewFile(link); err == nil {
		t.Error("a link is used")
	}
	otheruser.Require(t)
	if err := os.Chown(open, otheruser.UID, otheruser.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := doorbell.NewFile(open); err == nil {
		t.Error("the directory of another user is used")
	}
}

// Another user can neither ring, nor plant files, nor see which sessions there are, even where the directories above are open.
func TestAnotherUserCannotRingAFile(t *testing.T) {
	otheruser.Require(t)
	root := shortDir(t)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "bells")
	f, err := doorbell.NewFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	path, err := f.Watch(presence.Session{Vendor: presence.Claude, Process: self()})
	if err != nil {
		t.Fatal(err)
	}
	if err := asOther(t, `test -d "$1"`, root); err != nil {
		t.Fatal("the other user cannot even see the directory above, so that nothing is tried: ", err)
	}
	for _, command := range []string{`echo x >> "$1"`, `touch "$1"`, `rm -f "$1"`, `ln -sf /etc/passwd "$1"`, `ls "$2"`, `touch "$2/1-1"`, `mv "$2" "$2-old"`} {
		if err := asOther(t, command, path, dir); err == nil {
			t.Errorf("another user did %s", command)
		}
	}
	if data, err := os.ReadFile(path); err != nil || len(data) > 0 {
		t.Errorf("the file is %q, %v", data, err)
	}
}

// The socket on which Claude Code answers is of no use to another user, whatever its mode is: a held bell stays held.
func TestAnotherUserDoesNotAnswerForClaude(t *testing.T) {
	otheruser.Require(t)
	config, got := claude(t, nil, "held")
	b := doorbell.NewSocket(config, nil)
	defer b.Close()
	b.SetAnswerTime(time.Minute)
	changed := make(chan doorbell.Outcome, 2)
	if o, err := b.Ring(t.Context(), presence.Session{Vendor: presence.Claude, Process: self()}, "hello", func(o doorbell.Outcome) { changed <- o }); o != doorbell.Held || err != nil {
		t.Fatal(o, err)
	}
	m := <-got
	path := strings.TrimPrefix(m["from"].(string), "uds:")
	if err := asOther(t, `test -S "$1"`, path); err == nil {
		t.Error("another user sees the socket")
	}
	if err := errors.Join(os.Chmod(config, 0o755), os.Chmod(path, 0o777)); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", otheruser.Relay(t, "unix", path))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "{\"type\":\"control\",\"action\":\"peer_message_status\",\"status\":\"denied\",\"orig_msg_id\":%q}\n", m["msg_id"])
	_, _ = io.Copy(io.Discard, conn) // until it is closed
	answer(t, m, "delivered")
	if o := <-changed; o != doorbell.Rung {
		t.Errorf("after the word of another user it is %v", o)
	}
}

// A socket or a record that another user has put where Claude Code's or Codex's should be is not used.
func TestAnotherUsersSocketIsNotRung(t *testing.T) {
	otheruser.Require(t)
	session := presence.Session{Vendor: presence.Claude, Process: self()}
	config, got := claude(t, nil)
	if err := os.Chown(filepath.Join(config, "c.sock"), otheruser.UID, otheruser.UID); err != nil {
		t.Fatal(err)
	}
	b := doorbell.NewSocket(config, nil)
	defer b.Close()
	if o, err := b.Ring(t.Context(), session, "hello", later(t)); o != doorbell.Unable || err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("%v, %v", o, err)
	}
	home, turns := codex(t, map[string]string{"t1": "idle"})
	if err := os.Lchown(filepath.Join(home, "app-server-control", "app-server-control.sock"), otheruser.UID, otheruser.UID); err != nil {
		t.Fatal(err)
	}
	thread := presence.Session{Vendor: presence.Codex, ID: "t1", Dir: "/p"}
	if o, err := (doorbell.AppServer{Home: home}).Ring(t.Context(), thread, "hello", later(t)); o != doorbell.Unable || err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("%v, %v", o, err)
	}
	if len(got)+len(turns) > 0 {
		t.Error("another user's socket was rung")
	}
}
