// Package netnstest builds networks out of Linux network namespaces for tests:
// hosts with kernels' sockets and addresses of their own, routers between them,
// and NATs of each kind made of netfilter's rules. Nothing of it touches the
// machine's own network.
//
// It needs root, or user namespaces that anybody may make: see Inside.
package netnstest
