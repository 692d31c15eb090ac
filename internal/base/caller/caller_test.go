package caller_test

import (
	"net"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/parleyhub/parley/internal/base/caller"
)

// connect returns the server's end of a connection.
func connect(t *testing.T, network, address string) (server, client net.Conn) {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("%s is not available: %v", network, err)
	}
	defer ln.Close()
	client, err = net.Dial(network, ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return server, client
}

func TestOwnConnections(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("the system does not tell")
	}
	for _, at := range []struct{ network, address string }{
		{"tcp4", "127.0.0.1:0"},
		{"tcp6", "[::1]:0"},
		{"tcp", "127.0.0.2:0"},
		{"unix", filepath.Join(t.TempDir(), "s")},
	} {
		if at.address == "127.0.0.2:0" && runtime.GOOS == "darwin" {
			continue
		}
		t.Run(at.network+at.address, func(t *testing.T) {
			server, client := connect(t, at.network, at.address)
			for name, conn := range map[string]net.Conn{"server": server, "client": client} {
				if c := caller.Of(conn); c.Kind != caller.Own {
					t.Errorf("the %s's end: %v", name, c)
				}
			}
		})
	}
}

func TestClosedConnectionsHaveNoCaller(t *testing.T) {
	server, client := connect(t, "tcp", "127.0.0.1:0")
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	// The kernel has no owner for a closed socket, which must not be mistaken for root.
	if c := caller.Of(server); c.Kind != caller.Unknown {
		t.Errorf("%v", c)
	}
}

func TestAHalfClosedConnectionHasACaller(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux's states")
	}
	server, client := connect(t, "tcp", "127.0.0.1:0")
	if err := client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if c := caller.Of(server); c.Kind != caller.Own {
		t.Errorf("%v", c)
	}
}

func TestOtherNetworksAreUnknown(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if c := caller.Of(a); c.Kind != caller.Unknown || c.String() != "an unknown user" {
		t.Errorf("a pipe: %v", c)
	}
	far := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80}
	near := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	for _, pair := range [][2]net.Addr{{near, far}, {far, near}, {near, nil}, {(*net.TCPAddr)(nil), near}, {near, near}} {
		if c := caller.Between(pair[0], pair[1]); c.Kind != caller.Unknown {
			t.Errorf("%v: %v", pair, c)
		}
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if c := caller.Of(conn); c.Kind != caller.Unknown {
		t.Errorf("a closed socket: %v", c)
	}
}
