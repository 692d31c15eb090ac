package bus

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"
)

// maxGreeting bounds the first line of a NATS server, in bytes.
const maxGreeting = 64 << 10

// A greeting has the relevant fields of a NATS server's first line on a leaf node port.
type greeting struct {
	ClientID     uint64   `json:"client_id"`
	LeafNodeURLs []string `json:"leafnode_urls"`
	OnConnect    bool     `json:"info_on_connect"`
	TLSRequired  bool     `json:"tls_required"`
	MaxPayload   int64    `json:"max_payload"`
	Domain       string   `json:"domain"`
}

// greet requests the greetings of the cluster's servers concurrently, and returns the first valid
// one. Without a valid one it returns the most specific error.
func (l *leaf) greet(ctx context.Context) (greeting, error) {
	type answer struct {
		greeting
		err *Error
	}
	answers := make(chan answer, len(l.urls))
	var asked sync.WaitGroup
	defer asked.Wait()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for _, u := range l.urls {
		asked.Go(func() {
			a := answer{}
			var err error
			if a.greeting, err = l.greetOne(ctx, u); err != nil {
				a.err = connectError(err, "the leaf node port of "+u.Scheme+"://"+u.Host, l.secrets)
			}
			answers <- a
		})
	}
	var best *Error
	for range l.urls {
		a := <-answers
		if a.err == nil {
			return a.greeting, nil
		}
		if best == nil || telling(a.err) > telling(best) {
			best = a.err
		}
	}
	return greeting{}, best
}

func (l *leaf) greetOne(ctx context.Context, u *url.URL) (greeting, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return greeting{}, err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return greeting{}, err
		}
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // fails if it is closed already
	g, err := readGreeting(bufio.NewReaderSize(conn, maxGreeting))
	where := u.Scheme + "://" + u.Host
	conf := l.tlsFor(u)
	switch {
	case err != nil:
		return g, err
	case !g.isLeafPort():
		return g, &Error{Code: CodeNetwork, Message: where + " is not a leaf node port",
			Remedy: "use the port of the leafnodes block of the server's configuration, usually 7422"}
	case conf != nil && !g.TLSRequired:
		return g, &Error{Code: CodeNetwork, Message: "the leaf node port of " + where + " has no TLS",
			Remedy: "add a tls block to the leafnodes block of the server, or set bus.leaf.tlsRequired to false on a network that you trust"}
	case conf == nil:
		return g, nil
	}
	return g, tls.Client(conn, conf).HandshakeContext(ctx)
}

// isLeafPort reports whether the greeting is that of a port for leaf nodes.
func (g greeting) isLeafPort() bool { return g.ClientID != 0 && (g.LeafNodeURLs != nil || g.OnConnect) }

var errNotNATS = errors.New("it is not a NATS server")

// readGreeting reads the first line that a server sends.
func readGreeting(r *bufio.Reader) (greeting, error) {
	var g greeting
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return g, errNotNATS
	}
	if err != nil {
		return g, err
	}
	data, ok := strings.CutPrefix(string(line), "INFO ")
	if !ok {
		return g, errNotNATS
	}
	if err := json.Unmarshal([]byte(data), &g); err != nil {
		return greeting{}, fmt.Errorf("%w: %w", errNotNATS, err)
	}
	if g.MaxPayload <= 0 {
		return greeting{}, errNotNATS
	}
	return g, nil
}
