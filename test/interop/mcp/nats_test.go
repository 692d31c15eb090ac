//go:build interop

package mcp_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/test/interop/rig"
)

const password = "correct-horse-battery"

// The streams of channels on a stock NATS server match the specification, as read by a
// client in another language.
func TestStockNATSServer(t *testing.T) {
	scripts := rig.Scripts(t, []string{"nats.test.mjs", "sdk1.mjs"}, "@nats-io/jetstream", "@nats-io/transport-node", "@modelcontextprotocol/sdk")
	certs := newCertificates(t)
	user := fmt.Sprintf("authorization {user: agents, password: %q}\n", password)
	tls := fmt.Sprintf("tls {cert_file: %q, key_file: %q, ca_file: %q", certs.file("server.pem"), certs.file("server.key"), certs.file("ca.pem"))
	login := []string{"NATS_USERNAME=agents", "NATS_PASSWORD=" + password}
	ca := "NATS_TLS_CA=" + certs.file("ca.pem")
	for _, c := range []struct {
		name, config string
		scheme       string
		env          []string
	}{
		{"plain", "", "nats", nil},
		{"user and password", user, "nats", login},
		{"TLS, user and password", user + tls + "}", "tls", append(login, ca)},
		{"TLS with a client's certificate", tls + ", verify: true}", "tls",
			[]string{ca, "NATS_TLS_CERT=" + certs.file("client.pem"), "NATS_TLS_KEY=" + certs.file("client.key")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := programs.NewHome(t)
			address := startNATS(t, c.config)
			log, err := output(t, func(ctx context.Context) *exec.Cmd {
				cmd := rig.Node(ctx, t, "--test", "nats.test.mjs")
				cmd.Dir = scripts
				cmd.Env = append(append(h.Env, c.env...), "LOG_LEVEL=DEBUG", "NATS_URL="+c.scheme+"://"+address, "MCP_SERVER="+programs.Path("nats-mcp-server"),
					"PROJECT_A="+h.Project(t, "a", ""), "PROJECT_B="+h.Project(t, "b", `{"namespace": "team-x", "channels": [
						{"name": "build-log", "description": "What the build says", "maxMessages": 5, "maxBytes": 4096, "maxAge": "2d"},
						{"name": "review", "description": "Who looks at what"}]}`))
				return cmd
			})
			if err != nil {
				t.Error(err)
			}
			if !strings.Contains(log, `"level":"DEBUG"`) || strings.Contains(log, password) {
				t.Errorf("the log is incomplete or contains the password:\n%s", log)
			}
		})
	}
}

var listening = regexp.MustCompile(`Listening for client connections on (\S+)`)

// startNATS starts the stock server with JetStream and returns its address.
func startNATS(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "nats.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(programs.Path("nats-server"), "-js", "-a", "127.0.0.1", "-p", "-1", "-sd", filepath.Join(dir, "store"), "-c", file)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	var address, log string
	for lines.Scan() && !strings.Contains(lines.Text(), "Server is ready") {
		log += lines.Text() + "\n"
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	drained := make(chan struct{})
	go func() { // returns when the server ends
		defer close(drained)
		for lines.Scan() {
		}
	}()
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		<-drained
		if err := cmd.Wait(); err != nil {
			t.Errorf("nats-server: %v", err)
		}
	})
	if address == "" {
		t.Fatalf("nats-server has not started:\n%s", log)
	}
	return address
}

// certificates are those of an authority, a server and a client.
type certificates struct{ dir string }

func (c certificates) file(name string) string { return filepath.Join(c.dir, name) }

func newCertificates(t *testing.T) certificates {
	t.Helper()
	c := certificates{t.TempDir()}
	authority := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := c.issue(t, "ca", authority, authority, nil)
	c.issue(t, "server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority, key)
	c.issue(t, "client", &x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority, key)
	return c
}

// issue writes a certificate and its key, signed with the issuer's key, or with its own
// if issuer is nil.
func (c certificates) issue(t *testing.T, name string, cert, issuer *x509.Certificate, by *ecdsa.PrivateKey) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, issuer, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(c.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return key
}
