package testbed

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The links of a router.
const (
	wan = "wan"
	lan = "lan"
)

// NAT is how a router filters and maps the packets of sockets behind it.
type NAT int

// The kinds, as they are called since RFC 3489. All but Symmetric show everybody the same address of a socket.
const (
	FullCone          NAT = iota // accepts packets from every address
	AddressRestricted            // accepts packets from hosts to which a packet was sent
	PortRestricted               // accepts packets from sockets to which a packet was sent
	Symmetric                    // as PortRestricted, and shows each another port
	// Careless is PortRestricted on a router without a firewall of its own: what
	// comes unasked reaches the router, and takes the port's place in its memory.
	Careless
)

// String names the kind.
func (k NAT) String() string {
	return [...]string{"full cone", "address-restricted", "port-restricted", "symmetric", "careless"}[k]
}

// Network is a private network behind a NAT.
type Network struct {
	l      *Lab
	router *Host
	hosts  byte
}

// Network adds a private network. All have the same addresses inside. With
// FullCone and AddressRestricted what comes unasked goes to the first host.
func (l *Lab) Network(kind NAT) *Network {
	l.t.Helper()
	n := &Network{l: l, router: newHost(l.t, fmt.Sprintf("router %d (%v)", l.sites+1, kind))}
	l.connect(n.router)
	n.router.forward()
	n.router.must(n.router.link.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: lan}}), "bridge")
	n.router.address(lan, netip.PrefixFrom(inner(0), 24))
	n.router.translate(kind, inner(1))
	return n
}

// inner is an address in a private network; the router's is the first.
func inner(i byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 0, 1 + i}) }

// Host adds a host to the network.
func (n *Network) Host() *Host {
	n.l.t.Helper()
	n.hosts++
	h := newHost(n.l.t, fmt.Sprintf("host %d behind %s", n.hosts, n.router.name))
	port := fmt.Sprintf("port%d", n.hosts)
	cable(n.router, port, h, "eth0")
	n.router.must(n.router.link.LinkSetMaster(n.router.find(port), n.router.find(lan)), "join the bridge")
	n.router.up(port)
	h.addr = inner(n.hosts)
	h.address("eth0", netip.PrefixFrom(h.addr, 24))
	h.gateway(inner(0))
	return h
}

// rules changes a host's netfilter.
func (h *Host) rules(f func(c *nftables.Conn, table *nftables.Table)) {
	h.t.Helper()
	h.netfilter("lab", f)
}

// netfilter changes a table of a host's netfilter, which is made if it is not there.
func (h *Host) netfilter(table string, f func(c *nftables.Conn, table *nftables.Table)) {
	h.t.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(int(h.ns)))
	h.must(err, "netfilter")
	f(c, c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: table}))
	h.must(c.Flush(), "set netfilter's rules")
}

// Lose loses what a host that everybody can reach sends from now on, or what is sent to it, until Heal. Nobody is told.
func (l *Lab) Lose(h *Host, sent bool) {
	l.t.Helper()
	key := expr.MetaKeyOIFNAME
	if sent {
		key = expr.MetaKeyIIFNAME
	}
	l.core.netfilter(lossOf(h), func(c *nftables.Conn, table *nftables.Table) {
		forward := c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		// iifname SITE drop, or oifname SITE drop
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: append(linkIs(key, siteOf(h)), &expr.Verdict{Kind: expr.VerdictDrop})})
	})
}

// Heal ends what Lose has begun.
func (l *Lab) Heal(h *Host) {
	l.t.Helper()
	l.core.netfilter(lossOf(h), func(c *nftables.Conn, table *nftables.Table) { c.DelTable(table) })
}

// lossOf is the table with the rules of Lose.
func lossOf(h *Host) string { return "loss-" + siteOf(h) }

// linkIs matches packets by the name of a link.
func linkIs(key expr.MetaKey, is string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(is), make([]byte, unix.IFNAMSIZ-len(is))...)}}
}

// dropTired loses packets that have few hops left.
func (h *Host) dropTired(least byte) {
	h.t.Helper()
	h.rules(func(c *nftables.Conn, table *nftables.Table) {
		forward := c.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		// ip ttl < least drop
		c.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 1},
			&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: []byte{least}},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
	})
}

// translate makes a router a NAT of a kind. The comments are the rules as nft writes them.
func (h *Host) translate(kind NAT, first netip.Addr) {
	h.t.Helper()
	h.rules(func(c *nftables.Conn, table *nftables.Table) {
		chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) func(...expr.Any) {
			ch := c.AddChain(&nftables.Chain{Name: name, Table: table, Type: typ, Hooknum: hook, Priority: priority})
			return func(exprs ...expr.Any) { c.AddRule(&nftables.Rule{Table: table, Chain: ch, Exprs: exprs}) }
		}
		in, out := linkIs(expr.MetaKeyIIFNAME, wan), linkIs(expr.MetaKeyOIFNAME, wan)
		rule := func(parts ...any) (all []expr.Any) {
			for _, p := range parts {
				switch p := p.(type) {
				case []expr.Any:
					all = append(all, p...)
				case expr.Any:
					all = append(all, p)
				}
			}
			return all
		}

		postrouting := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		// oifname wan masquerade; for Symmetric: masquerade fully-random
		postrouting(rule(out, &expr.Masq{FullyRandom: kind == Symmetric})...)
		if kind != Careless {
			input := chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
			// iifname wan drop
			input(rule(in, &expr.Verdict{Kind: expr.VerdictDrop})...)
		}
		if kind != FullCone && kind != AddressRestricted {
			return
		}
		prerouting := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
		dnat := rule(&expr.Immediate{Register: 1, Data: first.AsSlice()}, &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1})
		if kind == FullCone {
			// iifname wan dnat to FIRST
			prerouting(rule(in, dnat)...)
			return
		}
		met := &nftables.Set{
			Table: table, Name: "met", KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian,
			Dynamic: true, HasTimeout: true, Timeout: 5 * time.Minute, Size: 1024,
		}
		h.must(c.AddSet(met, nil), "make a set")
		address := func(offset uint32) expr.Any {
			return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
		}
		const source, destination = 12, 16
		forward := chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
		// oifname wan update @met { ip daddr }
		forward(rule(out, address(destination), &expr.Dynset{SrcRegKey: 1, SetName: met.Name, SetID: met.ID, Operation: unix.NFT_DYNSET_OP_UPDATE})...)
		// iifname wan ip saddr @met dnat to FIRST
		prerouting(rule(in, address(source), &expr.Lookup{SourceRegister: 1, SetName: met.Name, SetID: met.ID}, dnat)...)
	})
}
