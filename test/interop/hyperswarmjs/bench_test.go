//go:build interop

package hyperswarmjs_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/swarm"
	"github.com/parleyhub/parley/identity"
)

// The benchmarks measure the same operations with Go at both ends and with npm's hyperswarm at both ends, on the
// same DHT of npm's nodes. They alternate, so that other load on the machine affects both, and report the median of
// each. The accepting end is a separate process; the other is this process, or the Node.js driver.

const rounds = 1000

// inTurns runs each side's function once per iteration and reports the medians of their results in the given unit.
func inTurns(b *testing.B, unit string, ours, npms func() time.Duration, value func(time.Duration) float64) {
	b.Helper()
	var all [2][]time.Duration
	for b.Loop() {
		all[0], all[1] = append(all[0], ours()), append(all[1], npms())
	}
	for i, name := range []string{"go", "npm"} {
		slices.Sort(all[i])
		b.ReportMetric(value(all[i][len(all[i])/2]), name+"-"+unit)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJoin measures the time from joining a topic, which another peer has announced, to the connection.
func BenchmarkJoin(b *testing.B) {
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	topic := identity.Hash([]byte("go"))
	startPeer(b, peerTask{Bootstrap: bootstrap, Topic: hex.EncodeToString(topic[:])})
	npms := identity.Hash([]byte("npm"))
	text := hex.EncodeToString(npms[:])
	server := other.do("swarm", args{"bootstrap": bootstrap, "mode": "echo"})
	other.do("join", args{"id": server.ID, "topic": text, "server": true, "client": false})
	inTurns(b, "ms", func() time.Duration {
		s := newSwarm(b, bootstrap)
		began := time.Now()
		if _, err := s.Join(topic, swarm.Client); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Accept(hyperswarmtest.Context(b)); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		return took
	}, func() time.Duration {
		return time.Duration(js.do("joinTime", args{"bootstrap": bootstrap, "topic": text}).Micros) * time.Microsecond
	}, func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 })
}

// BenchmarkEcho measures the round trip of a short message.
func BenchmarkEcho(b *testing.B) {
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	c := dialPeer(b, bootstrap, startPeer(b, peerTask{Bootstrap: bootstrap}).key)
	x, y := other.do("dht", args{"bootstrap": bootstrap}), js.do("dht", args{"bootstrap": bootstrap})
	server := other.do("listen", args{"id": x.ID, "mode": "echo"})
	npms := js.do("dial", args{"id": y.ID, "key": server.Key, "mode": "sink"})
	buf := make([]byte, 15)
	inTurns(b, "µs", func() time.Duration {
		began := time.Now()
		for range rounds {
			if _, err := c.Write([]byte("a short message")); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
		return time.Since(began)
	}, func() time.Duration {
		return time.Duration(js.do("pingpong", args{"id": npms.ID, "times": rounds}).Micros) * time.Microsecond
	}, func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / rounds })
}

// BenchmarkThroughput sends 64 MiB on one stream, until the other end confirms the last byte.
func BenchmarkThroughput(b *testing.B) {
	const size = 64 * mebibyte
	js, other := javascript(b), javascript(b)
	bootstrap := js.do("testnet", args{"size": 10}).Bootstrap
	c := dialPeer(b, bootstrap, startPeer(b, peerTask{Bootstrap: bootstrap, Sink: size}).key)
	data := noise(size)
	x, y := other.do("dht", args{"bootstrap": bootstrap}), js.do("dht", args{"bootstrap": bootstrap})
	server := other.do("listen", args{"id": x.ID, "mode": "sink"})
	npms := js.do("dial", args{"id": y.ID, "key": server.Key, "mode": "sink"})
	there := other.do("accepted", args{"id": server.ID, "count": 1}).Conns[0]
	total := 0
	inTurns(b, "MB/s", func() time.Duration {
		began := time.Now()
		if _, err := c.Write(data); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}, func() time.Duration {
		total += size
		began := time.Now()
		sent := js.start("sendBlank", args{"id": npms.ID, "size": size})
		other.do("arrived", args{"id": there, "count": total})
		took := time.Since(began)
		<-sent
		return took
	}, func(d time.Duration) float64 { return size / d.Seconds() / 1e6 })
}

// BenchmarkHundredPeers measures the resident memory of a process before and after a hundred idle peers connect.
func BenchmarkHundredPeers(b *testing.B) {
	const peers = 100
	other := javascript(b)
	bootstrap := other.do("testnet", args{"size": 10}).Bootstrap
	// One run only: later runs would also measure memory left over from earlier ones.
	measure := func(b *testing.B, pid int, key identity.PublicKey) {
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
		key, err := identity.ParsePublicKey(server.Key)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, js.cmd.Process.Pid, key)
	})
}

// resident returns the resident memory of a process in bytes.
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
