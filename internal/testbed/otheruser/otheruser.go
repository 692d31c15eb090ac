//go:build unix

// Package otheruser lets a test reach a server as a second user of the computer would. The test needs to run as root.
package otheruser

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const (
	// UID is the second user's id. It needs no entry in the system's list of users.
	UID = 41_907

	targetVariable = "PARLEY_TEST_RELAY" // makes a test's program a relay to this address
	// requireVariable is set in continuous integration, where a test that is skipped is one that has failed.
	requireVariable = "CI"
)

func init() {
	if target := os.Getenv(targetVariable); target != "" {
		network, address, _ := strings.Cut(target, " ")
		fmt.Fprintln(os.Stderr, relay(network, address))
		os.Exit(1)
	}
}

// Require skips a test that is not run as root.
func Require(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv(requireVariable) != "":
		t.Fatal("this test needs root in continuous integration")
	default:
		t.Skip("this test needs root")
	}
}

// Relay returns an address of loopback. Connections to it are forwarded to the given address of the network tcp or unix
// by a process of the second user, until the test ends.
func Relay(t testing.TB, network, address string) string {
	t.Helper()
	Require(t)
	cmd := exec.Command(program(t))
	cmd.Env = []string{targetVariable + "=" + network + " " + address}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: UID, Gid: UID}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // ends the relay
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the relay did not start: %v", err)
	}
	return strings.TrimSpace(line)
}

// program returns a copy of the test's program that every user may run.
func program(t testing.TB) string {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		path, pathErr := os.Executable()
		if pathErr != nil {
			t.Fatal(pathErr)
		}
		if self, err = os.Open(path); err != nil {
			t.Fatal(err)
		}
	}
	defer self.Close()
	dir, err := os.MkdirTemp("/tmp", "parley-otheruser-") // the test's own directory is private
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "relay")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, self)
	if closeErr := to.Close(); err != nil || closeErr != nil {
		t.Fatal(err, closeErr)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// relay forwards connections until its standard input ends, which ends the process. The error says why it cannot.
func relay(network, address string) error {
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Println(ln.Addr()); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		in, err := ln.Accept()
		if err != nil {
			return err
		}
		go forward(in, network, address)
	}
}

func forward(in net.Conn, network, address string) {
	defer in.Close()
	out, err := (&net.Dialer{}).DialContext(context.Background(), network, address)
	if err != nil {
		return
	}
	defer out.Close()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			if half, ok := way[1].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	both.Wait()
}
