package server_test

import (
	"strings"
	"testing"
)

// REQ-REL-008: a client of 2026-07-28 that listens, and goes, leaves no server
// behind.
func TestTheEndOfInputEndsListening(t *testing.T) {
	w := connect(t, openProject(t, configOf("listen", planning()...), startServer(t).dial))
	w.write(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["parley://channels/planning"]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if line := w.readLine(); !strings.Contains(string(line), "acknowledged") {
		t.Fatalf("%s", line)
	}
	w.end() // hangs if the server does
}
