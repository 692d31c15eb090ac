package caller

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// list builds a list as macOS does, with records that are skipped.
type list struct{ data []byte }

func (l *list) add(kind, size int, fill func(record []byte)) {
	record := make([]byte, (size+7)&^7)
	binary.LittleEndian.PutUint32(record, uint32(size))
	binary.LittleEndian.PutUint32(record[4:], uint32(kind))
	if fill != nil {
		fill(record)
	}
	l.data = append(l.data, record...)
}

func (l *list) socket(flags byte, local, remote netip.AddrPort, uid uint32) {
	l.add(kindPCB, 100, func(r []byte) {
		binary.BigEndian.PutUint16(r[pcbRemotePort:], remote.Port())
		binary.BigEndian.PutUint16(r[pcbLocalPort:], local.Port())
		r[pcbFlags] = flags
		for at, a := range map[int]netip.Addr{pcbRemote: remote.Addr(), pcbLocal: local.Addr()} {
			if a.Is4() && flags == flagIPv4 {
				copy(r[at+12:], a.AsSlice())
			} else {
				ip := a.As16()
				copy(r[at:], ip[:])
			}
		}
	})
	l.add(kindSocket, 92, func(r []byte) { binary.LittleEndian.PutUint32(r[socketUID:], uid) })
	l.add(2, 44, nil)
}

func TestOwnersInTheListOfMacOS(t *testing.T) {
	client, server := netip.MustParseAddrPort("127.0.0.1:50001"), netip.MustParseAddrPort("127.0.0.1:8080")
	mapped, six := netip.MustParseAddrPort("127.0.0.1:50002"), netip.MustParseAddrPort("[::1]:50003")
	sixServer := netip.MustParseAddrPort("[::1]:8080")
	l := &list{data: make([]byte, listHeader)}
	l.socket(flagIPv4, server, client, 501)
	l.socket(0, client, server, 500)
	l.socket(flagIPv4, client, server, 502)
	l.socket(flagIPv6, mapped, server, 503)
	l.socket(flagIPv6, six, sixServer, 504)
	l.data = append(l.data, make([]byte, listHeader)...)
	for _, c := range []struct {
		client, server netip.AddrPort
		want           int
	}{{client, server, 502}, {server, client, 501}, {mapped, server, 503}, {six, sixServer, 504}} {
		if uid, ok := ownerInList(l.data, c.client, c.server); !ok || uid != c.want {
			t.Errorf("%v: %d, %t", c.client, uid, ok)
		}
	}
	if _, ok := ownerInList(l.data, server, sixServer); ok {
		t.Error("an owner of no connection")
	}
	for n := range len(l.data) {
		if uid, ok := ownerInList(l.data[:n], six, sixServer); ok && uid != 504 {
			t.Errorf("cut after %d bytes: %d", n, uid)
		}
	}
}
