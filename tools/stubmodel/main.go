// Command stubmodel serves the stub model on loopback, for manual tests with the real CLIs. Package stubmodel describes
// its answers.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/parleyhub/parley/internal/stubmodel"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8899", "address to listen on")
	flag.Parse()
	l, err := net.Listen("tcp", *addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stubmodel:", err)
		os.Exit(1)
	}
	fmt.Println("http://" + l.Addr().String())
	server := &http.Server{Handler: &stubmodel.Handler{}, ReadHeaderTimeout: 10 * time.Second}
	if err := server.Serve(l); err != nil {
		fmt.Fprintln(os.Stderr, "stubmodel:", err)
		os.Exit(1)
	}
}
