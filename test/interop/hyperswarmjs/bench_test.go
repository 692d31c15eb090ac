//go:build interop

package hyperswarmjs_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/parleyhub/parley/transport/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/swarm"
)

// The benchmarks measure the same things with Go at both ends and with npm's
// hyperswarm at both ends, on the same DHT of npm's nodes. The end that is waited
// for is a process of its own; the other is this one, or the driver that npm runs.

const rounds = 1000

// BenchmarkJoin is the time from joining a topic, which another has announced, to
// the connection.
func BenchmarkJoin(b *testing.B) {
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	b.Run("go", func(b *testing.B) {
		topic := keys.Hash([]byte("go"))
		startPeer(b, peerTask{Bootstrap: bootstrap, Topic: hex.EncodeToString(topic[:])})
		for b.Loop() {
			b.StopTimer()
			s := newSwarm(b, bootstrap)
			b.StartTimer()
			if _, err := s.Join(topic, swarm.Client); err != nil {
				b.Fatal(err)
			}
			if _, err := s.Accept(hyperswarmtest.Context(b)); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("npm", func(b *testing.B) {
		topic := keys.Hash([]byte("npm"))
		text := hex.EncodeToString(topic[:])
		server := other.do("swarm", args{"bootstrap": bootstrap, "mode": "echo"})
		other.do("join", args{"id": server.ID, "topic": text, "server": true, "client": false})
		for b.Loop() {
			b.StopTimer()
			s := js.do("swarm", args{"bootstrap": bootstrap, "mode": "sink"})
			b.StartTimer()
			js.start("join", args{"id": s.ID, "topic": text, "server": false, "client": true})
			js.do("connected", args{"id": s.ID, "count": 1})
		}
	})
}

// BenchmarkEcho is a short message there and back.
func BenchmarkEcho(b *testing.B) {
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	b.Run("go", func(b *testing.B) {
		c := dialPeer(b, bootstrap, startPeer(b, peerTask{Bootstrap: bootstrap}).key)
		buf := make([]byte, 15)
		for b.Loop() {
			for range rounds {
				if _, err := c.Write([]byte("a short message")); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rounds), "µs/echo")
	})
	b.Run("npm", func(b *testing.B) {
		x := other.do("dht", args{"bootstrap": bootstrap})
		server := other.do("listen", args{"id": x.ID, "mode": "echo"})
		y := js.do("dht", args{"bootstrap": bootstrap})
		c := js.do("dial", args{"id": y.ID, "key": server.Key, "mode": "sink"})
		micros := 0
		for b.Loop() {
			micros += js.do("pingpong", args{"id": c.ID, "times": rounds}).Micros
		}
		b.ReportMetric(float64(micros)/float64(b.N*rounds), "µs/echo")
	})
}

// BenchmarkThroughput is 64 MiB on one stream, until the other end says that the
// last byte is there.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 * mebibyte
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	b.Run("go", func(b *testing.B) {
		c := dialPeer(b, bootstrap, startPeer(b, peerTask{Bootstrap: bootstrap, Sink: size}).key)
		data := noise(size)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.Write(data); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("npm", func(b *testing.B) {
		x := other.do("dht", args{"bootstrap": bootstrap})
		server := other.do("listen", args{"id": x.ID, "mode": "sink"})
		y := js.do("dht", args{"bootstrap": bootstrap})
		c := js.do("dial", args{"id": y.ID, "key": server.Key, "mode": "sink"})
		there := other.do("accepted", args{"id": server.ID, "count": 1}).Conns[0]
		b.SetBytes(size)
		total := 0
		for b.Loop() {
			total += size
			sent := js.start("send", args{"id": c.ID, "size": size})
			other.do("received", args{"id": there, "count": total})
			<-sent
		}
	})
}

// BenchmarkHundredPeers is the resident memory of a process with connections from
// a hundred peers that say nothing, and how much it had before they came.
func BenchmarkHundredPeers(b *testing.B) {
	const peers = 100
	other := javascript(b)
	bootstrap := other.do("testnet", args{"size": 10}).Bootstrap
	// Once is enough: what repeats would measure is what was left behind.
	measure := func(b *testing.B, pid int, key keys.PublicKey) {
		before := resident(b, pid)
		for range peers {
			dialPeer(b, bootstrap, key)
		}
		b.ReportMetric(float64(before)/mebibyte, "MB-before")
		b.ReportMetric(float64(resident(b, pid))/mebibyte, "MB-with-100")
		b.ReportMetric(0, "ns/op")
	}
	b.Run("go", func(b *testing.B) {
		p := startPeer(b, peerTask{Bootstrap: bootstrap})
		measure(b, p.pid, p.key)
	})
	b.Run("npm", func(b *testing.B) {
		js := javascript(b)
		dht := js.do("dht", args{"bootstrap": bootstrap})
		server := js.do("listen", args{"id": dht.ID, "mode": "echo"})
		key, err := keys.ParsePublicKey(server.Key)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, js.cmd.Process.Pid, key)
	})
}

// resident is the resident memory of a process in bytes.
func resident(b *testing.B, pid int) int {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * os.Getpagesize()
}
