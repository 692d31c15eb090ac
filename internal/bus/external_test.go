package bus_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/internal/bus"
	"github.com/parleyhub/parley/internal/testbed"
)

// stockServer builds the nats-server of the version in go.mod, once.
var stockServer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "parley-nats")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nats-server")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	stockServerDir = dir
	out, err := exec.Command("go", "build", "-o", path, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

var stockServerDir string

func removeStockServer() {
	if stockServerDir != "" {
		_ = os.RemoveAll(stockServerDir) // a temporary directory
	}
}

// startStock runs a stock server with a configuration on an address until the test ends or stop is
// called.
func startStock(t *testing.T, address, config string) (stop func()) {
	t.Helper()
	exe, err := stockServer()
	if err != nil {
		t.Fatalf("no stock nats-server: %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	config = fmt.Sprintf("listen: %q\n%s\n", address, strings.ReplaceAll(config, "STORE", filepath.ToSlash(dir)))
	must(t, os.WriteFile(file, []byte(config), 0o600))
	cmd := exec.Command(exe, "-c", file)
	var log logBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended already
		_ = cmd.Wait()         // killed
	})
	t.Cleanup(stop)
	for late := time.After(30 * time.Second); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			// The server sends its greeting when it is ready.
			_, err = conn.Read(make([]byte, 1))
			must(t, conn.Close())
			if err == nil {
				return stop
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("the stock server does not start: %s", log.String())
		}
	}
}

// closedPort returns an address where nothing listens, unless a server of the test does.
func closedPort(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testbed.FreePorts(t, 1)[0])
}

const withJetStream = `jetstream { store_dir: "STORE" }`

// REQ-PORT-005
func TestExternalServer(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	startStock(t, address, withJetStream)
	var log logBuffer
	b := open(t, bus.Config{URL: bus.Secret(address), Logger: log.logger()}) // without a scheme
	ensureStream(t, b, "S", "s.>")
	ack, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1", Data: []byte("one")})
	if err != nil || ack.Sequence != 1 {
		t.Fatalf("Publish: %v, %v", ack, err)
	}
	info := b.Info()
	if info.Kind != bus.KindExternal || info.URL != "nats://"+address || info.Durability != "" || info.ServerVersion == "" {
		t.Errorf("Info = %+v", info)
	}
	if u, err := b.Usage(t.Context()); err != nil || u.Streams != 1 {
		t.Errorf("Usage = %+v, %v", u, err)
	}
}

// REQ-SEC-001, REQ-SCALE-001
func TestAuthenticationAtAnExternalServer(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	must(t, err)
	seed, err := user.Seed()
	must(t, err)
	public, err := user.PublicKey()
	must(t, err)
	seedFile := writeFile(t, "seed.nk", seed)
	garbage := writeFile(t, "garbage", []byte("garbage"))

	password, token, nkey := closedPort(t), closedPort(t), closedPort(t)
	startStock(t, password, withJetStream+`
		accounts {
			JS { jetstream: enabled, users [ {user: ann, password: "s3cret/pass"}
				{user: bob, password: b, permissions { publish: { deny: "$JS.API.INFO" } } } ] }
			NOJS { users [ {user: carl, password: c} ] }
		}`)
	startStock(t, token, withJetStream+`
		authorization { token: "s3cret" }`)
	startStock(t, nkey, withJetStream+`
		authorization { users [ {nkey: `+public+`} ] }`)

	tests := []struct {
		name string
		url  string
		c    bus.Credentials
		want bus.Code // "" is success
	}{
		{"user", password, bus.Credentials{User: "ann", Password: "s3cret/pass"}, ""},
		{"user in the URL", "nats://ann:s3cret%2Fpass@" + password, bus.Credentials{}, ""},
		{"no credentials", password, bus.Credentials{}, bus.CodeAuth},
		{"wrong password", password, bus.Credentials{User: "ann", Password: "s3cret/wrong"}, bus.CodeAuth},
		{"wrong password in the URL", "nats://ann:s3cret@" + password, bus.Credentials{}, bus.CodeAuth},
		{"not allowed to ask", password, bus.Credentials{User: "bob", Password: "b"}, bus.CodeAuth},
		{"account without JetStream", password, bus.Credentials{User: "carl", Password: "c"}, bus.CodeNoJetStream},
		{"token", token, bus.Credentials{Token: "s3cret"}, ""},
		{"token in the URL", "nats://s3cret@" + token, bus.Credentials{}, ""},
		{"wrong token", token, bus.Credentials{Token: "s3cret-wrong"}, bus.CodeAuth},
		{"NKey", nkey, bus.Credentials{NKeyFile: seedFile}, ""},
		{"NKey where none is known", password, bus.Credentials{NKeyFile: seedFile}, bus.CodeAuth},
		{"NKey file missing", nkey, bus.Credentials{NKeyFile: seedFile + "x"}, bus.CodeConfig},
		{"NKey file garbage", nkey, bus.Credentials{NKeyFile: garbage}, bus.CodeConfig},
		{"credentials file missing", nkey, bus.Credentials{File: seedFile + "x"}, bus.CodeConfig},
		{"credentials file garbage", nkey, bus.Credentials{File: garbage}, bus.CodeConfig},
		{"two ways", token, bus.Credentials{Token: "s3cret", User: "ann"}, bus.CodeConfig},
		{"one server down, one refuses", token + "," + closedPort(t), bus.Credentials{Token: "s3cret-wrong"}, bus.CodeAuth},
		{"one server down", closedPort(t) + "," + token, bus.Credentials{Token: "s3cret"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log logBuffer
			b, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(tt.url), Credentials: tt.c, Logger: log.logger()})
			if bus.CodeOf(err) != tt.want || tt.want == "" && err != nil {
				t.Errorf("Open: %v (code %s), want %q", err, bus.CodeOf(err), tt.want)
			}
			shown := fmt.Sprint(log.String(), err, errors.Unwrap(err))
			if err == nil {
				shown += fmt.Sprint(b.Info())
				shut(t, b)
			} else if e := (*bus.Error)(nil); errors.As(err, &e) && e.Remedy == "" {
				t.Errorf("no remedy: %v", err)
			}
			if strings.Contains(shown, "s3cret") {
				t.Errorf("a secret is shown: %s", shown)
			}
		})
	}
}

// REQ-ERROR-008, REQ-TEST-008
func TestUnusableServers(t *testing.T) {
	t.Parallel()
	plain := closedPort(t)
	startStock(t, plain, "")
	notNATS := serve(t, func(c net.Conn) { fmt.Fprintf(c, "SSH-2.0-OpenSSH\r\n") }) //nolint:errcheck // a test's
	hangsUp := serve(t, func(net.Conn) {})
	tests := []struct {
		name    string
		url     string
		want    bus.Code
		message string
	}{
		{"nothing runs", closedPort(t), bus.CodeNotRunning, "no NATS server is running at nats://127.0.0.1:"},
		{"without JetStream", plain, bus.CodeNoJetStream, "without JetStream"},
		{"not NATS", notNATS, bus.CodeNetwork, "not a NATS server"},
		{"hangs up", hangsUp, bus.CodeNetwork, "closed the connection"},
		{"no such name", "nats://ann:pw@no-such-host.invalid:4222", bus.CodeNetwork, "cannot be resolved"},
		{"no TLS there", "tls://" + plain, bus.CodeNetwork, "it has no TLS"},
		{"scheme", "http://127.0.0.1", bus.CodeConfig, `scheme "http"`},
		{"garbage with a password", "nats://ann:hunter2@%zz", bus.CodeConfig, "it is not a URL"},
		{"empty entry", plain + ",", bus.CodeConfig, "URL 2 of the NATS server: it is empty"},
		{"no host", "nats://:4222", bus.CodeConfig, "no host"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(tt.url)})
			if bus.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.message) {
				t.Errorf("Open: %v (code %s), want %s: %s", err, bus.CodeOf(err), tt.want, tt.message)
			}
			if strings.Contains(fmt.Sprint(err, errors.Unwrap(err)), "hunter2") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
}

// serve accepts connections, sends answer to each and closes it.
func serve(t *testing.T, answer func(net.Conn)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		must(t, l.Close())
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			answer(c)
			_ = c.Close() // nothing depends on it
		}
	}()
	return l.Addr().String()
}

// REQ-SEC-002, REQ-SEC-007, REQ-SEC-TEST-004
func TestTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	other := newAuthority(t)
	serverCert, serverKey := ca.issue(t, "server", "localhost")
	clientCert, clientKey := ca.issue(t, "client", "client")
	strangerCert, strangerKey := other.issue(t, "stranger", "client")
	block := func(verify bool) string {
		return fmt.Sprintf("%s\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: %v, timeout: 30 }", withJetStream,
			filepath.ToSlash(serverCert), filepath.ToSlash(serverKey), filepath.ToSlash(ca.file), verify)
	}
	simple, mutual := closedPort(t), closedPort(t)
	startStock(t, simple, block(false))
	startStock(t, mutual, block(true))
	at := func(address string) string {
		_, port, err := net.SplitHostPort(address)
		must(t, err)
		return "tls://localhost:" + port
	}
	tests := []struct {
		name    string
		url     string
		c       bus.Credentials
		want    bus.Code
		message string
	}{
		{"CA", at(simple), bus.Credentials{CAFile: ca.file}, "", ""},
		{"scheme left to the server", simple, bus.Credentials{CAFile: ca.file, ServerName: "localhost"}, "", ""},
		{"system's CAs", at(simple), bus.Credentials{}, bus.CodeNetwork, "unknown authority"},
		{"another CA", at(simple), bus.Credentials{CAFile: other.file}, bus.CodeNetwork, "unknown authority"},
		{"another name", "tls://" + simple, bus.Credentials{CAFile: ca.file}, bus.CodeNetwork, "another name"},
		{"not verified", "tls://" + simple, bus.Credentials{InsecureSkipVerify: true}, "", ""},
		{"client certificate", at(mutual), bus.Credentials{CAFile: ca.file, CertFile: clientCert, KeyFile: clientKey}, "", ""},
		{"no client certificate", at(mutual), bus.Credentials{CAFile: ca.file}, bus.CodeAuth, "client certificate"},
		{"strange client certificate", at(mutual), bus.Credentials{CAFile: ca.file, CertFile: strangerCert, KeyFile: strangerKey}, bus.CodeAuth, "client certificate"},
		{"half a client certificate", at(mutual), bus.Credentials{CAFile: ca.file, CertFile: clientCert}, bus.CodeConfig, "both"},
		{"key of another certificate", at(mutual), bus.Credentials{CertFile: clientCert, KeyFile: strangerKey}, bus.CodeConfig, "client certificate"},
		{"CA file missing", at(simple), bus.Credentials{CAFile: "missing.pem"}, bus.CodeConfig, "missing.pem"},
		{"CA file without one", at(simple), bus.Credentials{CAFile: serverKey}, bus.CodeConfig, "no certificate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log logBuffer
			b, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(tt.url), Credentials: tt.c, Logger: log.logger()})
			if err == nil {
				defer shut(t, b)
				if _, err := b.Conn().TLSConnectionState(); err != nil {
					t.Errorf("no TLS: %v", err)
				}
			}
			if bus.CodeOf(err) != tt.want || err != nil && !strings.Contains(err.Error(), tt.message) {
				t.Errorf("Open: %v (code %s), want %q: %s", err, bus.CodeOf(err), tt.want, tt.message)
			}
			if warned := log.contains("not verified"); warned != tt.c.InsecureSkipVerify {
				t.Errorf("warning about the missing verification: %v", warned)
			}
		})
	}
}

// REQ-REL-001
func TestExternalBusReconnectsIndefinitely(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	config := withJetStream + "\nauthorization { user: ann, password: %s }"
	stop := startStock(t, address, fmt.Sprintf(config, "hunter2"))
	var log logBuffer
	b := open(t, bus.Config{
		URL:         bus.Secret(address),
		Credentials: bus.Credentials{User: "ann", Password: "hunter2"},
		Logger:      log.logger(),
	})
	ensureStream(t, b, "S", "s.>")
	changes := b.Conn().StatusChanged(nats.RECONNECTING, nats.CONNECTED)

	stop()
	awaitStatus(t, changes, nats.RECONNECTING)
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"}); bus.CodeOf(err) != bus.CodeNotRunning {
		t.Errorf("Publish without a connection: %v", err)
	}
	if _, err := b.Usage(t.Context()); bus.CodeOf(err) != bus.CodeNotRunning {
		t.Errorf("Usage without a connection: %v", err)
	}
	awaitInfo(t, b, func(i bus.Info) bool {
		return i.State == bus.StateReconnecting && strings.Contains(i.LastError, "no NATS server is running")
	})

	// Refused credentials do not end the attempts to reconnect.
	stop = startStock(t, address, fmt.Sprintf(config, "another"))
	awaitInfo(t, b, func(i bus.Info) bool { return strings.Contains(i.LastError, "refused the credentials") })
	stop()

	startStock(t, address, fmt.Sprintf(config, "hunter2"))
	awaitInfo(t, b, func(i bus.Info) bool {
		return i.State == bus.StateConnected && i.LastError == "" && i.Reconnects == 1
	})
	ensureStream(t, b, "S", "s.>")
	if _, err := b.Publish(t.Context(), &nats.Msg{Subject: "s.1"}); err != nil {
		t.Errorf("Publish after the reconnect: %v", err)
	}
	for _, want := range []string{"bus connection lost", "bus connection restored"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is logged %d times", want, n)
		}
	}
	if log.contains("hunter2") {
		t.Error("the log shows the password")
	}
}

func TestPublishInFlightEndsWithTheConnection(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	stop := startStock(t, address, withJetStream)
	b := open(t, bus.Config{URL: bus.Secret(address)})
	// A subscriber receives the message and never answers.
	sub, err := b.Conn().SubscribeSync("silent")
	must(t, err)
	failed := make(chan error)
	go func() {
		_, err := b.Publish(context.Background(), &nats.Msg{Subject: "silent"})
		failed <- err
	}()
	if _, err := sub.NextMsg(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-failed; bus.CodeOf(err) != bus.CodeNotRunning || !errors.Is(err, nats.ErrDisconnected) {
		t.Errorf("Publish: %v (code %s)", err, bus.CodeOf(err))
	}
}

// A message without an answer, such as one to a stream without a leader, delays Close only as long as its sender waits.
func TestCloseDoesNotWaitForGivenUpMessages(t *testing.T) {
	t.Parallel()
	address := closedPort(t)
	startStock(t, address, withJetStream)
	b := open(t, bus.Config{URL: bus.Secret(address)})
	_, err := b.Conn().Subscribe("silent", func(*nats.Msg) {})
	must(t, err)
	publish := func(send func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := send(ctx); bus.CodeOf(err) != bus.CodeTimeout {
			t.Errorf("without an answer: %v", err)
		}
	}
	publish(func(ctx context.Context) error {
		_, err := b.Publish(ctx, &nats.Msg{Subject: "silent"})
		return err
	})
	publish(func(ctx context.Context) error {
		batch := b.NewBatch()
		must(t, batch.Add(t.Context(), &nats.Msg{Subject: "silent"}))
		_, err := batch.Wait(ctx)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // half of the timeout of a request
	defer cancel()
	if err := b.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// awaitInfo waits until Info satisfies a condition, at most until the test times out.
func awaitInfo(t *testing.T, b *bus.Bus, ok func(bus.Info) bool) {
	t.Helper()
	for !ok(b.Info()) {
		select {
		case <-t.Context().Done():
			t.Fatalf("Info = %+v", b.Info())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"nats://ann:pass@host:4222", "host", "tls://a@b,ws://c", "nats://[::1]:4222", "nats://u:p%40@h/x?y#z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		const password = "correct-horse"
		for _, u := range []string{s, "nats://ann:" + password + "@" + s, s + ":" + password + "@host"} {
			shown, err := bus.ShownURL(bus.Config{URL: bus.Secret(u)})
			if err != nil && bus.CodeOf(err) != bus.CodeConfig {
				t.Errorf("%q: %v", u, err)
			}
			if !strings.Contains(s, password) && strings.Contains(u, "@") && strings.Contains(fmt.Sprint(shown, err), password) {
				t.Errorf("%q shows the password: %q, %v", u, shown, err)
			}
		}
	})
}

// authority is a CA that signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rand.Text()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{cert, key, writeFile(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// issue creates a certificate for a name, for servers and clients.
func (a *authority) issue(t *testing.T, file, name string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	return writeFile(t, file+".pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		writeFile(t, file+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
}

func writeFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, data, 0o600))
	return path
}

// REQ-SEC-CROSS-002: JWT credentials as an operator creates them with nsc.
func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	operator, operatorPub := newKey(t, nkeys.CreateOperator)
	account, accountPub := newKey(t, nkeys.CreateAccount)
	user, userPub := newKey(t, nkeys.CreateUser)
	_, systemPub := newKey(t, nkeys.CreateAccount)
	operatorClaims := jwt.NewOperatorClaims(operatorPub)
	operatorClaims.SystemAccount = systemPub
	operatorJWT, err := operatorClaims.Encode(operator)
	must(t, err)
	systemJWT, err := jwt.NewAccountClaims(systemPub).Encode(operator)
	must(t, err)
	accountClaims := jwt.NewAccountClaims(accountPub)
	accountClaims.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1, Streams: -1, Consumer: -1}
	accountJWT, err := accountClaims.Encode(operator)
	must(t, err)
	seed, err := user.Seed()
	must(t, err)
	credentials := func(expires time.Time) string {
		claims := jwt.NewUserClaims(userPub)
		claims.Expires = expires.Unix()
		userJWT, err := claims.Encode(account)
		must(t, err)
		file, err := jwt.FormatUserConfig(userJWT, seed)
		must(t, err)
		return writeFile(t, "user.creds", file)
	}

	address := closedPort(t)
	startStock(t, address, fmt.Sprintf("%s\noperator: %s\nresolver: MEMORY\nresolver_preload {\n%s: %s\n%s: %s\n}",
		withJetStream, operatorJWT, accountPub, accountJWT, systemPub, systemJWT))
	b := open(t, bus.Config{
		URL:         bus.Secret(address),
		Credentials: bus.Credentials{File: credentials(time.Now().Add(time.Hour))},
	})
	ensureStream(t, b, "S", "s.>")

	_, err = bus.Open(t.Context(), bus.Config{
		URL:         bus.Secret(address),
		Credentials: bus.Credentials{File: credentials(time.Now().Add(-time.Hour))},
	})
	if bus.CodeOf(err) != bus.CodeAuth {
		t.Errorf("expired credentials: %v (code %s)", err, bus.CodeOf(err))
	}
}

func newKey(t *testing.T, create func() (nkeys.KeyPair, error)) (key nkeys.KeyPair, public string) {
	t.Helper()
	key, err := create()
	must(t, err)
	public, err = key.PublicKey()
	must(t, err)
	return key, public
}

// Dial is for plain messages: it requires neither JetStream nor a running server. An invalid
// configuration is an error at once.
func TestDial(t *testing.T) {
	srv := testbed.StartNATS(t, testbed.WithoutJetStream)
	srv.Stop()
	conn, err := bus.Dial(bus.Config{URL: bus.Secret(srv.URL())})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	up := conn.StatusChanged(nats.CONNECTED)
	srv.Start()
	if !conn.IsConnected() {
		<-up
	}
	sub, err := conn.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Publish("x", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsg(20 * time.Second); err != nil || string(m.Data) != "hello" {
		t.Errorf("%v, %v", m, err)
	}
	guarded := testbed.StartNATS(t, testbed.WithoutJetStream, func(o *server.Options) { o.Username, o.Password = "u", "p" })
	refused, err := bus.Dial(bus.Config{URL: bus.Secret(guarded.URL()), Credentials: bus.Credentials{User: "u", Password: "false"}})
	if err != nil || refused.IsConnected() {
		t.Errorf("with a wrong password: %v", err)
	}
	if refused != nil {
		refused.Close()
	}
	for name, cfg := range map[string]bus.Config{
		"no URL of NATS":           {URL: "http://example.org"},
		"no file":                  {URL: "nats://127.0.0.1:1", Credentials: bus.Credentials{File: filepath.Join(t.TempDir(), "none")}},
		"two ways to authenticate": {URL: "nats://127.0.0.1:1", Credentials: bus.Credentials{User: "u", NKeyFile: "k"}},
	} {
		if c, err := bus.Dial(cfg); bus.CodeOf(err) == "" {
			t.Errorf("%s: %v", name, err)
			c.Close()
		}
	}
}

// REQ-REL-006: every attempt to reconnect is logged, the repeated ones at INFO.
// An attempt to connect to a host that does not answer takes as long as the system waits.
func TestCloseEndsAnAttemptToConnect(t *testing.T) {
	n := testbed.StartNATS(t)
	var lost atomic.Bool
	attempted := make(chan struct{})
	attempt := sync.OnceFunc(func() { close(attempted) })
	b, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(n.URL()), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if !lost.Load() {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		attempt()
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	must(t, err)
	lost.Store(true)
	n.Stop()
	<-attempted
	closed := make(chan error, 1)
	go func() { closed <- b.Close(context.Background()) }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(time.Minute):
		t.Error("Close waits for the attempt")
	}
}

func TestAttemptsToReconnectAreLogged(t *testing.T) {
	n := testbed.StartNATS(t)
	var log logBuffer
	b, err := bus.Open(t.Context(), bus.Config{URL: bus.Secret(n.URL()), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close(context.Background())) })
	n.Stop()
	for _, want := range []string{"level=WARN msg=\"cannot reconnect", "level=INFO msg=\"cannot reconnect"} {
		wait.Eventually(t, want, func() bool { return strings.Contains(log.String(), want) })
	}
}
