package hyperswarm_test

import (
	"runtime"
	"testing"

	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/hyperswarm"
)

// BenchmarkHundredPeers measures the memory of a hundred idle connections; both ends are in this process.
func BenchmarkHundredPeers(b *testing.B) {
	const peers = 100
	bootstrap, _ := hyperswarmtest.Network(b, 4)
	hub, clients := hyperswarmtest.Node(b, options(bootstrap)), hyperswarmtest.Node(b, options(bootstrap))
	l := listen(b, hyperswarm.ListenOptions{Node: hub, Allow: anybody})
	defer l.Close()
	d := &hyperswarm.Dialer{Node: clients}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	for b.Loop() {
		b.StopTimer()
		before := heap()
		b.StartTimer()
		var conns []transport.Conn
		for range peers {
			here, err := d.Dial(hyperswarmtest.Context(b), l.Endpoint())
			if err != nil {
				b.Fatal(err)
			}
			there, err := l.Accept(hyperswarmtest.Context(b))
			if err != nil {
				b.Fatal(err)
			}
			conns = append(conns, here, there)
		}
		b.StopTimer()
		b.ReportMetric(float64(heap()-before)/(2*peers), "B/connection-end")
		for _, c := range conns {
			go c.Close()
		}
		b.StartTimer()
	}
}
