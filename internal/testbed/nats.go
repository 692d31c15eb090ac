// Package testbed has what tests run against: stock NATS servers, which know nothing of Parley and can be stopped
// and started again, and, on Linux, networks of hosts, routers and NATs in network namespaces.
package testbed

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
)

// patience is how long a server may take to accept connections.
const patience = 20 * time.Second

// Server is a NATS server in this process. It is safe for concurrent use.
type Server struct {
	t       testing.TB
	options server.Options

	mu  sync.Mutex
	srv *server.Server // nil while it is stopped
}

// StartNATS runs a server with JetStream on a port of its own until the test ends. Each
// change alters its options before.
func StartNATS(t testing.TB, changes ...func(*server.Options)) *Server {
	t.Helper()
	s := &Server{t: t, options: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	for _, change := range changes {
		change(&s.options)
	}
	if s.options.Port == server.RANDOM_PORT {
		s.options.Port = FreePorts(t, 1)[0]
	}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// WithoutJetStream is a change for [StartNATS].
func WithoutJetStream(o *server.Options) { o.JetStream, o.StoreDir = false, "" }

// Configured is a change for [StartNATS]: the options of a configuration file's text, of
// which the client port and the store may be left out.
func Configured(t testing.TB, text string) func(*server.Options) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats-server.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *server.Options) {
		store := o.StoreDir
		*o = *opts
		o.Host, o.NoSigs, o.NoLog = "127.0.0.1", true, true
		if o.Port == 0 {
			o.Port = server.RANDOM_PORT
		}
		if o.StoreDir == "" {
			o.StoreDir = store
		}
	}
}

// Start starts the server again after [Server.Stop]. Each change alters its options before.
func (s *Server) Start(changes ...func(*server.Options)) {
	s.t.Helper()
	for _, change := range changes {
		change(&s.options)
	}
	var srv *server.Server
	for range 3 {
		var fatal *fatalLog
		if srv, fatal = s.launch(); fatal.text() == "" {
			break
		}
		// A server that was stopped right after its last stream was deleted may still remove the directory that
		// this one has just made.
		srv.Shutdown()
		srv.WaitForShutdown()
		s.t.Log(fatal.text())
	}
	if !srv.ReadyForConnections(patience) {
		s.t.Fatal("the NATS server does not start")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv, s.options.Port = srv, srv.Addr().(*net.TCPAddr).Port
}

// launch starts a server, and returns it with what it logs when it cannot go on.
func (s *Server) launch() (*server.Server, *fatalLog) {
	s.t.Helper()
	options := s.options // the server writes to what it is given
	srv, err := server.NewServer(&options)
	if err != nil {
		s.t.Fatal(err)
	}
	fatal := &fatalLog{}
	srv.SetLoggerV2(fatal, false, false, false)
	srv.Start()
	return srv, fatal
}

// fatalLog keeps why a server cannot go on, the last time. It is safe for concurrent use.
type fatalLog struct{ last atomic.Pointer[string] }

// text is empty while the server goes on.
func (l *fatalLog) text() string {
	if text := l.last.Load(); text != nil {
		return *text
	}
	return ""
}

func (l *fatalLog) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.last.Store(&text)
}

func (*fatalLog) Noticef(string, ...any) {}
func (*fatalLog) Warnf(string, ...any)   {}
func (*fatalLog) Errorf(string, ...any)  {}
func (*fatalLog) Debugf(string, ...any)  {}
func (*fatalLog) Tracef(string, ...any)  {}

// Stop stops the server, which keeps its port and its files. It may be stopped already.
func (s *Server) Stop() {
	s.mu.Lock()
	srv := s.srv
	s.srv = nil
	s.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
	}
}

// URL is where clients connect to, also while the server is stopped.
func (s *Server) URL() string { return "nats://" + s.Addr() }

// Addr is the host and port of [Server.URL].
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("127.0.0.1:%d", s.options.Port)
}

// NATS is the running server, for what only it can tell; nil while it is stopped.
func (s *Server) NATS() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// Foreign is a client that is not ours, until the test ends.
func (s *Server) Foreign() jetstream.JetStream {
	s.t.Helper()
	nc, err := nats.Connect(s.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// Leaks are the goroutines that a server leaves behind, for goleak to ignore.
func Leaks() []goleak.Option {
	return []goleak.Option{
		// When a stream is deleted.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		// For the life of the process.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}

// FreePorts returns n ports of 127.0.0.1 at which nothing listens, and which are the test's own until it ends: a
// server that names one gets it, again and again, also one in another process. While the server is away the system
// gives the port to nobody else, as another test's server, or the server's own client that tries to come back. (This
// is so on Linux; elsewhere the ports are only free now.)
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
