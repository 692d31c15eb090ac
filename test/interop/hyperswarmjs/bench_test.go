//go:build interop

package hyperswarmjs_test

import (
	"encoding/hex"
	"io"
	"testing"

	"github.com/parleyhub/parley/transport/hyperswarm/hyperdht"
	"github.com/parleyhub/parley/transport/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/transport/hyperswarm/keys"
	"github.com/parleyhub/parley/transport/hyperswarm/swarm"
)

// The benchmarks measure the same things with Go at both ends and with npm's
// hyperswarm at both ends, each end a process or, for Go, a node of its own, on
// the same DHT.

const rounds = 1000

// BenchmarkJoin is the time from joining a topic, which another has announced, to
// the connection.
func BenchmarkJoin(b *testing.B) {
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	b.Run("go", func(b *testing.B) {
		topic := keys.Hash([]byte("go"))
		server := newSwarm(b, bootstrap)
		join(b, server, topic, swarm.Server)
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
			if _, err := server.Accept(hyperswarmtest.Context(b)); err != nil {
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
		server := hyperswarmtest.Node(b, hyperdht.Options{Bootstrap: bootstrap})
		l, err := server.Listen(hyperdht.ListenOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.WaitAnnounced(hyperswarmtest.Context(b)); err != nil {
			b.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(hyperswarmtest.Context(b)); err == nil {
				_, _ = io.Copy(c, c) // the other end notices
			}
		}()
		c, err := hyperswarmtest.Node(b, hyperdht.Options{Bootstrap: bootstrap}).Dial(hyperswarmtest.Context(b), l.Key(), hyperdht.DialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Destroy()
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

// BenchmarkThroughput is 64 MiB on one stream, until the last byte is there.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 * mebibyte
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	b.Run("go", func(b *testing.B) {
		server := hyperswarmtest.Node(b, hyperdht.Options{Bootstrap: bootstrap})
		l, err := server.Listen(hyperdht.ListenOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.WaitAnnounced(hyperswarmtest.Context(b)); err != nil {
			b.Fatal(err)
		}
		c, err := hyperswarmtest.Node(b, hyperdht.Options{Bootstrap: bootstrap}).Dial(hyperswarmtest.Context(b), l.Key(), hyperdht.DialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Destroy()
		there, err := l.Accept(hyperswarmtest.Context(b))
		if err != nil {
			b.Fatal(err)
		}
		defer there.Destroy()
		data := noise(size)
		b.SetBytes(size)
		for b.Loop() {
			go func() {
				if _, err := c.Write(data); err != nil {
					b.Error(err)
				}
			}()
			if _, err := io.CopyN(io.Discard, there, size); err != nil {
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
