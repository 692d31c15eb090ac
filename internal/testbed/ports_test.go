package testbed_test

import (
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testbed.Leaks()...) }

// A stopped server can restart on its port, even if other processes requested ports meanwhile.
func TestAStoppedServerKeepsItsPort(t *testing.T) {
	n := testbed.StartNATS(t, testbed.WithoutJetStream)
	for range 3 {
		address := n.Addr()
		n.Stop()
		if c, err := net.Dial("tcp", address); err == nil {
			t.Errorf("another process listens at %s: %v", address, c.Close())
		}
		for range 50 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		n.Start()
		nc, err := nats.Connect("nats://" + address)
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
	}
}

// The system assigns a reserved port to no other socket, in tens of thousands of requests.
func TestAReservedPortIsAssignedToNobodyElse(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reserves a port for a server while another socket is bound to it")
	}
	ports := testbed.FreePorts(t, 8)
	mine := map[int]bool{}
	for _, p := range ports {
		if mine[p] {
			t.Errorf("port %d was reserved twice", p)
		}
		mine[p] = true
	}
	for range 2000 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Addr().(*net.TCPAddr).Port; mine[p] {
			t.Errorf("port %d was assigned to another socket", p)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range ports {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			t.Errorf("the owner cannot listen on it: %v", err)
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
