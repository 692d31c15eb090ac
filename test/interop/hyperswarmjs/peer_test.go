//go:build interop

package hyperswarmjs_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/parleyhub/parley/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/secretstream"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
)

// peerVariable is the environment variable that makes this program a peer for the benchmarks of another process.
const peerVariable = "PARLEY_TEST_PEER"

// peerTask is the task of a peer: to echo all data, or to confirm each Sink bytes.
type peerTask struct {
	Bootstrap []string
	Topic     string // to announce, if set
	Sink      int64
}

type peer struct {
	pid int
	key identity.PublicKey
}

// startPeer starts a peer that accepts connections until the benchmark ends.
func startPeer(b *testing.B, task peerTask) peer {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), peerVariable+"=1"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close() // which ends the peer
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
	})
	if err := json.NewEncoder(in).Encode(task); err != nil {
		b.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	key, err := identity.ParsePublicKey(line[:len(line)-1])
	if err != nil {
		b.Fatal(err)
	}
	return peer{cmd.Process.Pid, key}
}

// dialPeer connects to a peer from a new node. The connection lasts until the benchmark ends.
func dialPeer(b *testing.B, bootstrap []string, key identity.PublicKey) *secretstream.Conn {
	b.Helper()
	n := hyperswarmtest.Node(b, hyperdht.Options{Bootstrap: bootstrap})
	c, err := n.Dial(hyperswarmtest.Context(b), key, hyperdht.DialOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Destroy)
	return c
}

// servePeer is the main function of a peer. It returns at the end of its input.
func servePeer(in io.Reader, out io.Writer) error {
	var task peerTask
	if err := json.NewDecoder(in).Decode(&task); err != nil {
		return err
	}
	n, err := hyperdht.Listen(hyperdht.Options{Listen: hyperswarmtest.Loopback, Bootstrap: task.Bootstrap, HandshakeRate: 1000, RequestRate: 10_000})
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in) // only the end matters
		cancel()
	}()
	accept, err := task.listen(ctx, n)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, n.Key()); err != nil {
		return err
	}
	for {
		c, err := accept(ctx)
		if err != nil {
			return nil // the input has ended
		}
		go task.serve(c)
	}
}

func (p *peerTask) listen(ctx context.Context, n *hyperdht.Node) (func(context.Context) (*secretstream.Conn, error), error) {
	if p.Topic == "" {
		l, err := n.Listen(hyperdht.ListenOptions{})
		if err != nil {
			return nil, err
		}
		return l.Accept, l.WaitAnnounced(ctx)
	}
	topic, err := hex.DecodeString(p.Topic)
	if err != nil || len(topic) != 32 {
		return nil, fmt.Errorf("the topic is %q: %w", p.Topic, err)
	}
	s := swarm.New(swarm.Options{Node: n})
	t, err := s.Join([32]byte(topic), swarm.Server)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*secretstream.Conn, error) {
		c, err := s.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return c.Conn, nil
	}, t.Flushed(ctx)
}

// serve executes the task on one connection. Errors show at the other end.
func (p *peerTask) serve(c *secretstream.Conn) {
	defer c.Destroy()
	if p.Sink == 0 {
		_, _ = io.Copy(c, c)
		return
	}
	for {
		if _, err := io.CopyN(io.Discard, c, p.Sink); err != nil {
			return
		}
		if _, err := c.Write([]byte{1}); err != nil {
			return
		}
	}
}
