package daemon

import (
	"net"
	"os"
	"path/filepath"
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
