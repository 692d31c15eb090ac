package caller

import (
	"encoding/binary"
	"net/netip"
)

// The list of TCP sockets of macOS (net.inet.tcp.pcblist_n, struct xinpgen, then records of several kinds for each socket).
// Each record starts with its length and kind, and is followed by padding to 8 bytes.
const (
	listHeader = 24
	kindSocket = 0x001 // struct xsocket_n
	kindPCB    = 0x010 // struct xinpcb_n

	pcbRemotePort = 16 // in network byte order
	pcbLocalPort  = 18
	pcbFlags      = 44
	pcbRemote     = 48 // 16 bytes; IPv4 in the last 4
	pcbLocal      = 64
	pcbSize       = 80
	socketUID     = 64
	socketSize    = 72

	flagIPv4 = 1
	flagIPv6 = 2
)

// ownerInList returns the user of the socket that is connected from client to server. The record of a socket's addresses
// comes before that of its user.
func ownerInList(list []byte, client, server netip.AddrPort) (uid int, ok bool) {
	if len(list) < listHeader {
		return 0, false
	}
	found := false
	for rest := list[listHeader:]; len(rest) >= 8; {
		size := int(min(binary.LittleEndian.Uint32(rest), 1<<20))
		if size < 8 || size > len(rest) {
			return 0, false
		}
		record := rest[:size]
		switch binary.LittleEndian.Uint32(record[4:]) {
		case kindPCB:
			found = size >= pcbSize && pcbConnects(record, client, server)
		case kindSocket:
			if found && size >= socketSize {
				return int(binary.LittleEndian.Uint32(record[socketUID:])), true
			}
		}
		rest = rest[min((size+7)&^7, len(rest)):]
	}
	return 0, false
}

func pcbConnects(pcb []byte, client, server netip.AddrPort) bool {
	return binary.BigEndian.Uint16(pcb[pcbLocalPort:]) == client.Port() && binary.BigEndian.Uint16(pcb[pcbRemotePort:]) == server.Port() &&
		pcbAddr(pcb, pcbLocal) == client.Addr() && pcbAddr(pcb, pcbRemote) == server.Addr()
}

func pcbAddr(pcb []byte, at int) netip.Addr {
	switch pcb[pcbFlags] & (flagIPv4 | flagIPv6) {
	case flagIPv4:
		return netip.AddrFrom4([4]byte(pcb[at+12 : at+16]))
	case flagIPv6:
		return netip.AddrFrom16([16]byte(pcb[at : at+16])).Unmap()
	}
	return netip.Addr{}
}
