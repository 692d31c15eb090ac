package udx_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/parleyhub/parley/hyperswarm/hyperswarmtest"
	"github.com/parleyhub/parley/hyperswarm/udx"
)

// FuzzReceive sends arbitrary packets from the peer's host to a stream, several at a time.
//
// WIRE-T25.
func FuzzReceive(f *testing.F) {
	packet := func(types, offset byte, seq, ack uint32, rest ...byte) []byte {
		b := []byte{types, offset}
		b = binary.LittleEndian.AppendUint32(b, 1<<20)
		b = binary.LittleEndian.AppendUint32(b, seq)
		b = binary.LittleEndian.AppendUint32(b, ack)
		return append(b, rest...)
	}
	f.Add(packet(1, 0, 0, 0, 'x'), packet(1, 4, 1, 0, 0, 0, 0, 0, 'y'))
	f.Add(packet(4, 8, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0), packet(2, 0, 0, 1))
	f.Add(packet(4, 0, 0, 2, 0, 0, 0, 0, 3, 0, 0, 0), packet(32, 0, 5, 5))
	f.Add(packet(16, 0, 0, 0), packet(1, 0, 9000, 0, 'z'))
	// A range so far ahead that its distance overflows and appears negative.
	f.Add(packet(4, 8, 0, 0, 0x39, 0xba, 0x6b, 0x35, 0x3a, 0xf4, 0x13, 0x9f), packet(4, 8, 0, 0, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0x80))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		synctest.Test(t, func(t *testing.T) {
			e := newEnds(t, hyperswarmtest.Faults{}, udx.Options{ReceiveBuffer: 10_000})
			e.connect()
			if _, err := e.b.Write([]byte("something on its way")); err != nil {
				t.Fatal(err)
			}
			mallory := e.net.Listen("10.0.0.1:1001") // the peer's host
			defer mallory.Close()
			for _, data := range [][]byte{first, second, first} {
				if len(data) < 2 {
					continue
				}
				full := append([]byte{0xff, 1, data[0], data[1]}, binary.LittleEndian.AppendUint32(nil, e.b.ID())...)
				if _, err := mallory.WriteToUDPAddrPort(append(full, data[2:]...), netip.MustParseAddrPort(addrB)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			e.a.Destroy()
			e.b.Destroy()
		})
	})
}
