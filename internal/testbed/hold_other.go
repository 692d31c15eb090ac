//go:build !linux

package testbed

import "net"

// hold finds a port that is free now. Other systems give a port that a socket is bound to to no server.
func hold() (port int, release func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	return l.Addr().(*net.TCPAddr).Port, func() error { return nil }, l.Close()
}
