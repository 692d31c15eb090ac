package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// HUB-SOCKET-PATH: the specified path leads to the hub, but nobody's file there is replaced.
func TestTheSocketIsOfferedAtTheSpecifiedPlace(t *testing.T) {
	dir, err := os.MkdirTemp("", "parley") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	link, socket, other := filepath.Join(dir, "link"), filepath.Join(dir, "hub"), filepath.Join(dir, "other")
	for _, path := range []string{socket, other} {
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
	}
	remove, ok := offerSocket(t.Context(), link, other)
	if !ok {
		t.Fatal("a free path is not used")
	}
	if _, ok := offerSocket(t.Context(), link, socket); ok {
		t.Error("another hub's link was replaced")
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if err := os.Symlink(filepath.Join(dir, "gone"), link); err != nil {
		t.Fatal(err)
	}
	if remove, ok = offerSocket(t.Context(), link, socket); !ok {
		t.Fatal("a dead link was not replaced")
	}
	if c, err := net.Dial("unix", link); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(link, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(link); err != nil {
		t.Error("a file that is not the link was removed")
	}
	if _, ok := offerSocket(t.Context(), link, socket); ok {
		t.Error("a file was replaced")
	}
}

// A link that a killed hub has left is removed for the next one; whatever else is there stays.
func TestOnlyADeadLinkIsClearedAtTheSpecifiedPlace(t *testing.T) {
	dir, err := os.MkdirTemp("", "parley") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := func(name string) string { return filepath.Join(dir, name) }
	listen := func(name string, live bool) {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path(name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		ln.SetUnlinkOnClose(false)
		if !live {
			ln.Close()
			return
		}
		t.Cleanup(func() { ln.Close() })
	}
	listen("live", true)
	listen("dead", false)
	if err := os.WriteFile(path("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for target, kept := range map[string]bool{"live": true, "dead": false, "gone": false, "file": true, ".": true} {
		link := path("link-" + target)
		if err := os.Symlink(path(target), link); err != nil {
			t.Fatal(err)
		}
		for _, place := range []string{path("elsewhere"), link} {
			if err := clearOffered(t.Context(), place, link); err != nil {
				t.Errorf("%s: %v", target, err)
			}
			if _, err := os.Lstat(link); (err == nil) != (kept || place != link) {
				t.Errorf("%s, offered at %s: %v", target, place, err)
			}
		}
	}
	if err := clearOffered(t.Context(), path("dead"), path("dead")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path("dead")); err != nil {
		t.Error("a socket was removed that is no link")
	}
}

// A hub that is started through a link names the program by the link.
func TestTheHubHasTheNameOfTheProgramThatWasCalled(t *testing.T) {
	called := os.Args[0]
	defer func() { os.Args[0] = called }()
	for name, want := range map[string]string{"/usr/bin/a2a-hub": "a2a-hub", "nats-mcp-server": "nats-mcp-server", "parley": "/opt/parley"} {
		os.Args[0] = name
		if cmd := hubProcess([]string{"/opt/parley", "start"}); cmd.Path != "/opt/parley" || cmd.Args[0] != want {
			t.Errorf("%s: %q as %q", name, cmd.Path, cmd.Args)
		}
	}
}

func TestAStartOnAFullDiskNamesTheDirectory(t *testing.T) {
	dir := t.TempDir()
	var de *Error
	err := fullError(dir, fmt.Errorf("cannot open a stream: %w", syscall.ENOSPC))
	if !errors.As(err, &de) || de.Code != CodeDataDir || !strings.Contains(de.Message, "no space left in the data directory "+dir) || de.Remedy == "" {
		t.Errorf("got %v", err)
	}
	if other := errors.New("other"); fullError(dir, other) != other || fullError(dir, nil) != nil {
		t.Error("another error is taken for a full disk")
	}
}
