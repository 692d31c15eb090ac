//go:build interop

package mcp_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/parleyhub/parley/test/interop/rig"
)

// host is a simulated computer, in the form that the script reads.
type host struct {
	Home     string            `json:"home"`
	URL      string            `json:"url"`
	Projects map[string]string `json:"projects"`
}

// newHost creates a home with projects that are in the agents' network on a NATS server.
func newHost(t *testing.T, address string, projects ...string) (host, rig.Home) {
	t.Helper()
	h := programs.NewHome(t)
	at := host{h.Dir, "tls://agents:" + password + "@" + address, map[string]string{}}
	for _, name := range projects {
		at.Projects[name] = h.Project(t, name, fmt.Sprintf(`{"namespace": %q}`, name))
	}
	return at, h
}

// REQ-TEST-CROSS-001, REQ-TEST-CROSS-002, REQ-TEST-CROSS-003, REQ-TEST-CROSS-006,
// REQ-TEST-CROSS-006A, REQ-TEST-CROSS-008: agents of two vendors on two computers
// that share a stock NATS server with TLS and a password. Each computer has its own home,
// hub, projects and, where the system allows it, network and host name.
func TestAgentsOfTwoVendorsOnTwoComputers(t *testing.T) {
	scripts := rig.Scripts(t, []string{"network.test.mjs", "sdk1.mjs", "sdk2.mjs", "hosts.sh"}, "@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
	certs := certificates{t.TempDir()}
	authority := &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	key := certs.issue(t, "ca", authority, authority, nil)
	certs.issue(t, "server", &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 97, 1, 1), net.IPv4(10, 97, 2, 1)}}, authority, key)
	config := fmt.Sprintf("authorization {user: agents, password: %q}\ntls {cert_file: %q, key_file: %q}\n", password, certs.file("server.pem"), certs.file("server.key"))

	env := append(os.Environ(), "MCP_SDK=both", "MCP_REVISION=2026-07-28", "MCP_SERVER="+programs.Path("nats-mcp-server"), "NATS_TLS_CA="+certs.file("ca.pem"))
	separate := namespaces()
	addresses := map[string]string{"alpha": "10.97.1.1:4222", "beta": "10.97.2.1:4222"}
	if separate {
		file := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, "NATS_CONFIG="+file, "NATS_STORE="+t.TempDir(), "PATH="+string(programs)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	} else {
		t.Log("this system allows no network namespaces: the computers share one network and host name")
		address := startNATS(t, config)
		addresses = map[string]string{"alpha": address, "beta": address}
	}
	alpha, _ := newHost(t, addresses["alpha"], "control")
	beta, _ := newHost(t, addresses["beta"], "shop", "blog")
	hosts, err := json.Marshal(map[string]any{"alpha": alpha, "beta": beta, "namespaces": separate})
	if err != nil {
		t.Fatal(err)
	}
	_, err = output(t, func(ctx context.Context) *exec.Cmd {
		cmd := rig.Node(ctx, t, "--test", "network.test.mjs")
		if separate {
			cmd = inNamespaces(ctx, append([]string{"sh", filepath.Join(scripts, "hosts.sh")}, cmd.Args...)...)
		}
		cmd.Dir, cmd.Env = scripts, append(env, "HOSTS="+string(hosts))
		return cmd
	})
	if err != nil {
		t.Error(err)
	}
}

func inNamespaces(ctx context.Context, command ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "unshare", append([]string{"--user", "--map-root-user", "--net", "--mount"}, command...)...)
}

// namespaces reports whether namespaces can simulate computers here.
func namespaces() bool {
	const try = "mount -t tmpfs none /run && mkdir /run/netns && ip netns add x && ip link add name veth0 type veth peer name eth0 netns x && unshare --uts hostname x"
	for _, program := range []string{"unshare", "nsenter", "ip", "hostname"} {
		if _, err := exec.LookPath(program); err != nil {
			return false
		}
	}
	return inNamespaces(context.Background(), "sh", "-c", try).Run() == nil
}
