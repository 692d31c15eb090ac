package caller

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	mine   = "   1: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0000000000000000 20 4 30 10 -1\n"
	orphan = "   2: 0100007F:D432 0100007F:1F90 04 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000 20 4 30 10 -1\n"
	asking = "   3: 0100007F:D433 0100007F:1F90 02 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0000000000000000 20 4 30 10 -1\n"
	mapped = "   0: 0000000000000000FFFF00000100007F:D434 0000000000000000FFFF00000100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 4713 1 0000000000000000\n"
)

func at(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
}

func TestOwnersInTheTables(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tcp": header + "damaged\n" + mine + orphan + asking, "tcp6": header + mapped} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for port, want := range map[uint16]int{0xD431: 1000, 0xD432: -1, 0xD433: -1, 0xD434: 1001, 0xD435: -1} {
		uid, ok := ownerInTables(dir, at(port), at(8080))
		if !ok {
			uid = -1
		}
		if uid != want {
			t.Errorf("port %x: %d instead of %d", port, uid, want)
		}
	}
	if _, ok := ownerInTables(filepath.Join(dir, "missing"), at(1), at(2)); ok {
		t.Error("an owner without a table")
	}
	for _, bad := range []string{
		"1: x 0100007F:1F90 01 0:0 0:0 0 1 0 1", "1: 0100007F:1F90 0100007F:zz 01 0:0 0:0 0 1 0 1",
		"1: 0100007F:1F90 0100007F01:1F90 01 0:0 0:0 0 1 0 1", "1: 0100007F:1F90 0100007F:1F90 01 0:0 0:0 0 x 0 1",
	} {
		if _, ok := parseLine([]byte(bad)); ok {
			t.Errorf("accepted: %s", bad)
		}
	}
}

// The tables below /proc and netlink must say the same.
func TestTheTablesSayWhatTheKernelSays(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	from, to := addrPort(client.LocalAddr()), addrPort(client.RemoteAddr())
	if uid, ok := ownerInTables("/proc/thread-self/net", from, to); !ok || uid != os.Geteuid() {
		t.Errorf("the tables: %d, %t", uid, ok)
	}
	s, err := askKernel(from, to)
	if err != nil {
		t.Skipf("netlink is not available: %v", err)
	}
	if uid, ok := s.user(); !ok || uid != os.Geteuid() {
		t.Errorf("netlink: %d, %t", uid, ok)
	}
	// Without a connection the kernel answers with the listener.
	if s, err := askKernel(to, from); err == nil && s.state != stateEstablished {
		t.Errorf("%+v", s)
	}
	if _, err := askKernel(to, at(1)); !errors.Is(err, unix.ENOENT) {
		t.Errorf("of a listener: %v", err)
	}
}

func TestAnswersOfTheKernel(t *testing.T) {
	failed := make([]byte, unix.SizeofNlMsghdr+4)
	native.PutUint16(failed[4:], unix.NLMSG_ERROR)
	if _, err := parseAnswer(failed); !errors.Is(err, errAnswer) {
		t.Errorf("an acknowledgement: %v", err)
	}
	code := -int32(unix.EPERM)
	native.PutUint32(failed[unix.SizeofNlMsghdr:], uint32(code))
	if _, err := parseAnswer(failed); !errors.Is(err, unix.EPERM) {
		t.Errorf("an error: %v", err)
	}
	short := make([]byte, unix.SizeofNlMsghdr+10)
	native.PutUint16(short[4:], unix.SOCK_DIAG_BY_FAMILY)
	for _, b := range [][]byte{nil, short} {
		if _, err := parseAnswer(b); !errors.Is(err, errAnswer) {
			t.Errorf("%v", err)
		}
	}
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{}, []byte(mine))
	f.Fuzz(func(_ *testing.T, answer, line []byte) {
		_, _ = parseAnswer(answer)
		_, _ = parseLine(line)
		_, _ = ownerInList(answer, at(1), at(2))
	})
}

func BenchmarkOf(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for b.Loop() {
		Of(client)
	}
}
