//go:build unix

package main

import (
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

// serverVariable makes the test's program a NATS server on an address, with a store in the directory that another variable names.
const serverVariable = "PARLEY_FAULTS_SERVER"

const natsPort = 4222

// serveNATS is the server's process.
func serveNATS(address string) int {
	srv, err := server.NewServer(&server.Options{Host: address, Port: natsPort, JetStream: true, StoreDir: os.Getenv(serverVariable + "_DIR"), SyncAlways: true, NoSigs: true, NoLog: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	srv.Start()
	srv.WaitForShutdown()
	return 1 // it stopped by itself
}
