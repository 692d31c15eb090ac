package websocket_test

import (
	"io"
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/channel/transporttest"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(receiverAddress); address != "" {
		if err := receive(address, os.Getenv(receiverFile)); err != nil {
			log.Fatal(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// quiet drops the HTTP server's log messages about hostile clients.
var quiet = log.New(io.Discard, "", 0)

func listen(t testing.TB, o websocket.ListenOptions) *websocket.Listener {
	t.Helper()
	o.ErrorLog = quiet
	l, err := websocket.Listen("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestTransport runs the common tests of all transports (Req 3.6, 3.7).
func TestTransport(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Transport {
		return transporttest.Transport{Dialer: &websocket.Dialer{}, Listen: func(t testing.TB) transport.Listener {
			return listen(t, websocket.ListenOptions{})
		}}
	})
}
