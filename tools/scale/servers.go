package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// patience is how long servers may take to start and to find each other.
const patience = time.Minute

// arrangement is how servers are arranged.
type arrangement struct {
	name     string
	clusters int // a hub's own server is one cluster of one
	nodes    int // of each cluster
}

var arrangements = []arrangement{
	{"one hub's server", 1, 1},
	{"cluster of three", 1, 3},
	{"super-cluster of two times three", 2, 3},
}

// nodeOptions are those of one server.
type nodeOptions struct {
	Name, Dir              string
	Port, Routes, Gateways int // of clients, of its cluster, and of other clusters; the latter two are 0 for a server alone
	Cluster                string
	Peers                  []int            // the routes' ports of its cluster
	Others                 map[string][]int // the gateways' ports of each cluster
}

func (o nodeOptions) server() *server.Options {
	s := &server.Options{ServerName: o.Name, Host: "127.0.0.1", Port: o.Port, JetStream: true, StoreDir: o.Dir, NoSigs: true, NoLog: true}
	if o.Cluster == "" {
		return s
	}
	s.Cluster = server.ClusterOpts{Name: o.Cluster, Host: "127.0.0.1", Port: o.Routes}
	s.Routes = urls(o.Peers)
	if len(o.Others) > 1 {
		s.Gateway = server.GatewayOpts{Name: o.Cluster, Host: "127.0.0.1", Port: o.Gateways}
		for name, ports := range o.Others {
			s.Gateway.Gateways = append(s.Gateway.Gateways, &server.RemoteGatewayOpts{Name: name, URLs: urls(ports)})
		}
	}
	return s
}

func urls(ports []int) (list []*url.URL) {
	for _, port := range ports {
		list = append(list, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	return list
}

// use is what a server has used since its start.
type use struct {
	Messages  int64         `json:"messages"` // in and out, of clients and of other servers
	Bytes     int64         `json:"bytes"`
	Processor time.Duration `json:"processor"`
	Memory    int64         `json:"memory"` // resident, now
	Leads     bool          `json:"leads"`  // the servers' JetStream
	Known     int           `json:"known"`  // servers of JetStream
}

// serveNode runs a server with the options that come first, reports its use for each line that follows, and ends with the input.
func serveNode(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	if !lines.Scan() {
		return errors.New("the options are missing")
	}
	var o nodeOptions
	if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
		return err
	}
	srv, err := server.NewServer(o.server())
	if err != nil {
		return err
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(patience) {
		return errors.New("the server does not start")
	}
	for reply := json.NewEncoder(out); lines.Scan(); {
		u, err := used(srv)
		if err == nil {
			err = reply.Encode(u)
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

func used(srv *server.Server) (use, error) {
	v, err := srv.Varz(nil)
	if err != nil {
		return use{}, err
	}
	spent, err := processorTime()
	if err != nil {
		return use{}, err
	}
	u := use{Messages: v.InMsgs + v.OutMsgs, Bytes: v.InBytes + v.OutBytes, Processor: spent, Memory: v.Mem, Leads: srv.JetStreamIsLeader()}
	if v.JetStream.Meta != nil {
		u.Known = v.JetStream.Meta.Size
	}
	return u, nil
}

// node is a server in a process of its own.
type node struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	port int
}

func startNode(ctx context.Context, o nodeOptions) (*node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-node")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	n := &node{cmd: cmd, in: in, out: json.NewDecoder(out), port: o.Port}
	return n, json.NewEncoder(in).Encode(o)
}

// use asks a server what it has used.
func (n *node) use() (u use, err error) {
	if _, err := n.in.Write([]byte("\n")); err != nil {
		return u, err
	}
	return u, n.out.Decode(&u)
}

// servers are those of an arrangement, by cluster.
type servers struct {
	clusters [][]*node
}

// startServers starts those of a in dir, and waits until they know each other.
func startServers(ctx context.Context, a arrangement, dir string) (*servers, error) {
	ports, err := freePorts(3 * a.clusters * a.nodes)
	if err != nil {
		return nil, err
	}
	s := &servers{clusters: make([][]*node, a.clusters)}
	for _, o := range a.options(dir, ports) {
		n, err := startNode(ctx, o.nodeOptions)
		if n != nil {
			s.clusters[o.at] = append(s.clusters[o.at], n)
		}
		if err != nil {
			s.stop()
			return nil, err
		}
	}
	if err := s.awaitLeader(ctx, a); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

type placed struct {
	nodeOptions
	at int // the cluster's number
}

// options are those of all servers of a, with three ports for each.
func (a arrangement) options(dir string, ports []int) (all []placed) {
	others := map[string][]int{}
	for i := range a.clusters * a.nodes {
		o := placed{at: i / a.nodes}
		o.Name, o.Dir = fmt.Sprint("n", i), filepath.Join(dir, fmt.Sprint("n", i))
		o.Port, o.Routes, o.Gateways = ports[3*i], ports[3*i+1], ports[3*i+2]
		if a.nodes > 1 {
			o.Cluster = fmt.Sprint("c", o.at)
			others[o.Cluster] = append(others[o.Cluster], o.Gateways)
		}
		all = append(all, o)
	}
	for i := range all {
		all[i].Others = others
		for _, o := range all {
			if o.at == all[i].at {
				all[i].Peers = append(all[i].Peers, o.Routes)
			}
		}
	}
	return all
}

// awaitLeader waits until one server leads all of them.
func (s *servers) awaitLeader(ctx context.Context, a arrangement) error {
	if a.nodes == 1 {
		_, err := s.use()
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		all, err := s.use()
		if err != nil {
			return err
		}
		for _, u := range all {
			if u.Leads && u.Known == len(all) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errors.New("the servers have no leader")
}

// use asks all servers.
func (s *servers) use() (all []use, err error) {
	for _, cluster := range s.clusters {
		for _, n := range cluster {
			u, err := n.use()
			if err != nil {
				return nil, fmt.Errorf("a server does not answer: %w", err)
			}
			all = append(all, u)
		}
	}
	return all, nil
}

// url is that of a cluster's clients.
func (s *servers) url(cluster int) string {
	var list []string
	for _, n := range s.clusters[cluster%len(s.clusters)] {
		list = append(list, fmt.Sprintf("nats://127.0.0.1:%d", n.port))
	}
	return strings.Join(list, ",")
}

func (s *servers) stop() {
	for _, cluster := range s.clusters {
		for _, n := range cluster {
			_ = n.in.Close() // it ends with its input
		}
	}
	for _, cluster := range s.clusters {
		for _, n := range cluster {
			_ = n.cmd.Wait() // its figures have been taken
		}
	}
}

func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // only its port is of interest
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
