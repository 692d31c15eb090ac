//go:build !linux

package udx

import "net"

// dontFragment does nothing here: packets stay at the smallest size, which every
// path takes.
func dontFragment(*net.UDPConn) {}

const probesMTU = false
