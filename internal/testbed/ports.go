package testbed

import "testing"

// FreePorts returns n ports of 127.0.0.1 at which nothing listens, and which are the
// test's own until it ends: a server that names one gets it, again and again, also one in
// another process. While the server is away the system gives the port to nobody else, as
// another test's server, or the server's own client that tries to come back. (This is so
// on Linux; elsewhere the ports are only free now.)
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		port, release, err := hold()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := release(); err != nil {
				t.Error(err)
			}
		})
		ports = append(ports, port)
	}
	return ports
}
