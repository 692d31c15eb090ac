//go:build linux

package caller_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/internal/base/caller"
	"github.com/parleyhub/parley/internal/testbed/otheruser"
)

func TestAnotherUserIsRecognized(t *testing.T) {
	dir, err := os.MkdirTemp("", "caller")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct{ network, address string }{{"tcp", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}, {"unix", filepath.Join(dir, "s")}} {
		t.Run(at.network, func(t *testing.T) {
			ln, err := net.Listen(at.network, at.address)
			if err != nil {
				t.Skip(err)
			}
			defer ln.Close()
			if at.network == "unix" {
				if err := os.Chmod(at.address, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			network := at.network
			if network == "tcp6" {
				network = "tcp"
			}
			client, err := net.Dial("tcp", otheruser.Relay(t, network, ln.Addr().String()))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			c := caller.Of(server)
			if c.Kind != caller.Other || c.UID != otheruser.UID {
				t.Errorf("%v", c)
			}
			if c.String() != "the user with the id 41907" {
				t.Error(c.String())
			}
		})
	}
}
