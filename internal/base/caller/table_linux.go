package caller

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
)

// tableAddr reads an address such as 0100007F:1F90. The IP is printed as 32-bit numbers of the machine's byte order.
func tableAddr(text []byte) (netip.AddrPort, bool) {
	ip, port, ok := bytes.Cut(text, []byte(":"))
	if !ok {
		return netip.AddrPort{}, false
	}
	number, err := parseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	raw := make([]byte, hex.DecodedLen(len(ip)))
	if _, err := hex.Decode(raw, ip); err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		native.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), true
}

func parseUint(text []byte, base, bits int) (uint64, error) {
	return strconv.ParseUint(string(text), base, bits)
}
