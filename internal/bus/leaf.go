package bus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/parleyhub/parley/internal/base/wait"
)

// LeafConfig links an embedded bus to a cluster, as a leaf node. Processes with a [Grant] of [AccessCluster] or
// [GrantRequest.Cluster] use the cluster through the hub, and only the hub has the cluster's credentials.
type LeafConfig struct {
	// URL of the cluster's leaf node ports, separated by commas; empty for no link. The
	// schemes are nats and tls; the default port is 7422.
	URL Secret
	// Domain is the JetStream domain of the cluster. It is required: JetStream does not answer
	// through a leaf node without one.
	Domain string
	// Credentials of the hub at the cluster, without a Token. The files of the key and of the
	// certificate authority are read at the start.
	Credentials Credentials
}

// LeafInfo is the state of a hub's link to a cluster.
type LeafInfo struct {
	State  State     `json:"state"` // connected or reconnecting
	Since  time.Time `json:"since"`
	URL    string    `json:"url"` // without secrets
	Domain string    `json:"domain"`
	// Server is the name of the connected server.
	Server string `json:"server,omitempty"`
	// MaxPayload is the largest message that the cluster accepts, in bytes; NATS's default
	// until the first connection.
	MaxPayload int64 `json:"maxPayload"`
	// LastError is why the link is not connected.
	LastError string `json:"lastError,omitempty"`
	Remedy    string `json:"remedy,omitempty"`
}

const (
	// clusterAccount is the embedded server's account for the link. It has no JetStream, so
	// that nothing is stored on both sides.
	clusterAccount = "agents-cluster"
	leafUser       = clusterAccount + ".hub"

	defaultLeafPort   = "7422"
	defaultMaxPayload = 1 << 20 // NATS's default, until the cluster's limit is known

	leafPoll     = 100 * time.Millisecond // the interval of checks of the link: the server has no event for it
	leafGrace    = time.Second            // for a link that has just started
	minLeafDelay = 400 * time.Millisecond // between the first two examinations of a link that is down
	maxLeafDelay = 5 * time.Second        // between two examinations of a link that is down
)

// localSubjects are not forwarded to the cluster: on them a hub answers its own agents.
var localSubjects = []string{"global.hub.>"}

// A leaf is the embedded server's link to a cluster. While the link is up and the cluster's JetStream answers, the
// account behind the link is open for clients. When the link is lost, the clients are disconnected and none is
// admitted, so that they see the same as direct clients of the cluster.
type leaf struct {
	log     *slog.Logger
	urls    []*url.URL
	shown   string
	domain  string
	tls     *tls.Config // nil if TLS is not required
	remote  *server.RemoteLeafOpts
	secrets []string
	logged  atomic.Pointer[string] // the server's last log message about the link

	server *server.Server
	users  *users
	conn   *nats.Conn // the hub's connection to the account
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu         sync.Mutex
	open       bool
	since      time.Time
	with       string // the name of the cluster's server
	maxPayload int64
	why        *Error // why the account is not open
}

// newLeaf checks the configuration; it returns nil without a link.
func newLeaf(cfg LeafConfig, log *slog.Logger) (*leaf, error) {
	if cfg.URL == "" {
		return nil, nil
	}
	if cfg.Domain == "" || strings.ContainsAny(cfg.Domain, " \t.*>") {
		return nil, &Error{Code: CodeConfig, Message: fmt.Sprintf("%.80q cannot be the JetStream domain of the leaf node's cluster", cfg.Domain),
			Remedy: "set the domain of the jetstream block of the cluster's servers"}
	}
	c := cfg.Credentials
	l := &leaf{log: log, domain: cfg.Domain, since: time.Now(), secrets: []string{string(c.Password)},
		remote: &server.RemoteLeafOpts{LocalAccount: clusterAccount, DialTimeout: connectTimeout, TLSTimeout: connectTimeout.Seconds(),
			DenyImports: localSubjects, DenyExports: localSubjects, Credentials: c.File}}
	if err := l.parseURLs(cfg.URL); err != nil {
		return nil, err
	}
	inURL := false
	for _, u := range l.urls {
		c.TLS = c.TLS || u.Scheme == "tls"
		inURL = inURL || u.User != nil
	}
	if err := l.authenticate(c, inURL); err != nil {
		return nil, err
	}
	var err error
	if l.tls, err = c.tlsConfig(); err != nil {
		return nil, err
	}
	l.remote.TLSConfig = l.tls.Clone() // the server modifies it
	if c.InsecureSkipVerify {
		log.Warn("the certificates of the leaf node's cluster are not verified: anyone on the network path can read and change messages", "url", l.shown)
	}
	for _, u := range l.urls {
		own := *u // the server modifies it
		l.remote.URLs = append(l.remote.URLs, &own)
	}
	l.why = &Error{Code: CodeNotRunning, Message: "the link to the cluster at " + l.shown + " has not been established yet", Remedy: "try again in a moment"}
	return l, nil
}

// parseURLs parses the addresses of the cluster's servers.
func (l *leaf) parseURLs(urls Secret) error {
	var shown []string
	for i, raw := range strings.Split(string(urls), ",") {
		u, err := parseURL(strings.TrimSpace(raw))
		if err == nil && u.Scheme != "nats" && u.Scheme != "tls" {
			err = fmt.Errorf("scheme %q is neither nats nor tls", u.Scheme)
		}
		if err != nil {
			return &Error{Code: CodeConfig, Message: fmt.Sprintf("URL %d of the leaf node's cluster: %v", i+1, err),
				Remedy: "write it as tls://host:7422"}
		}
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), defaultLeafPort)
		}
		if u.User != nil {
			l.secrets = append(l.secrets, userinfoSecrets(u.User)...)
		}
		shown = append(shown, u.Scheme+"://"+u.Host)
		l.urls = append(l.urls, u)
	}
	l.shown = strings.Join(shown, ",")
	return nil
}

// authenticate sets the credentials in the server's options.
func (l *leaf) authenticate(c Credentials, inURL bool) error {
	if _, err := c.authOption(inURL); err != nil {
		return err
	}
	switch {
	case c.Token != "":
		return &Error{Code: CodeConfig, Message: "a leaf node cannot log in with a token", Remedy: "use user and password, an NKey file or a credentials file"}
	case c.User != "" || c.Password != "":
		for _, u := range l.urls {
			u.User = url.UserPassword(c.User, string(c.Password))
		}
		l.secrets = append(l.secrets, userinfoSecrets(l.urls[0].User)...)
	case c.NKeyFile != "":
		seed, err := readSeed(c.NKeyFile)
		if err != nil {
			return fileError("the NKey file", c.NKeyFile, err)
		}
		l.remote.Nkey = seed
		l.secrets = append(l.secrets, seed)
	}
	return nil
}

func readSeed(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	key, err := nkeys.ParseDecoratedNKey(data)
	if err != nil {
		return "", err
	}
	defer key.Wipe()
	seed, err := key.Seed()
	return string(seed), err
}

// configure adds the link to a server's options. The server's name is random: the cluster would
// take a second leaf node with the same name for a reconnect of the first.
func (l *leaf) configure(opts *server.Options) {
	opts.ServerName = "parley-" + strings.ToLower(rand.Text()[:12])
	opts.Accounts = []*server.Account{server.NewAccount(clusterAccount)}
	opts.LeafNode.Remotes = []*server.RemoteLeafOpts{l.remote}
	opts.LeafNode.ReconnectInterval = leafGrace
	opts.PingInterval = pingInterval // as for other clients
}

// prepare configures the account, before the server starts.
func (l *leaf) prepare(s *server.Server, us *users) error {
	l.server, l.users = s, us
	return l.limit(defaultMaxPayload)
}

// start starts to watch the link of a running server. The owner closes l before the server stops.
func (l *leaf) start() error {
	s, us := l.server, l.users
	// With several accounts the server does not enable JetStream for the global one.
	if err := s.GlobalAccount().EnableJetStream(nil, nil); err != nil {
		return err
	}
	acc, err := s.LookupAccount(clusterAccount)
	if err != nil {
		return err
	}
	password, _ := us.add(server.User{Username: leafUser, Account: acc}, time.Time{})
	l.conn, err = nats.Connect("", nats.InProcessServer(s), nats.UserInfo(leafUser, password), nats.Name("parley-hub link"),
		nats.MaxReconnects(-1), nats.ReconnectBufSize(-1))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.done.Go(func() { l.watch(ctx) })
	return nil
}

// close stops watching.
func (l *leaf) close() {
	if l.cancel != nil {
		l.cancel()
		l.done.Wait()
	}
	if l.conn != nil {
		l.conn.Close()
	}
}

// clusterSubject maps a subject of the JetStream API to that of the cluster's domain.
func (l *leaf) clusterSubject(subject string) string {
	api := "$JS." + l.domain + ".API."
	if rest, ok := strings.CutPrefix(subject, "$JS.API."); ok {
		return api + rest
	}
	if strings.HasPrefix(subject, "$KV.") {
		return api + subject
	}
	return subject
}

// limit bounds the messages in the account, because the cluster closes the link when a message is
// too large for it, and maps the JetStream API of the account to the cluster's domain. Claims are
// the only way to set an account's limit.
func (l *leaf) limit(maxPayload int64) error {
	l.mu.Lock()
	same := l.maxPayload == maxPayload
	l.maxPayload = maxPayload
	l.mu.Unlock()
	if same { // the server reads some claims without its lock when it connects
		return nil
	}
	acc, err := l.server.LookupAccount(clusterAccount)
	if err != nil {
		return err
	}
	claims := jwt.NewAccountClaims(clusterAccount)
	claims.Limits.Payload = maxPayload
	for _, subject := range []string{"$JS.API.INFO", "$JS.API.STREAM.>", "$JS.API.CONSUMER.>", "$JS.API.DIRECT.>", "$KV.>"} {
		claims.AddMapping(jwt.Subject(subject), jwt.WeightedMapping{Subject: jwt.Subject(l.clusterSubject(subject)), Weight: 100})
	}
	l.server.UpdateAccountClaims(acc, claims)
	return nil
}

// watch opens the account when the link is up and closes it when the link is lost.
func (l *leaf) watch(ctx context.Context) {
	poll := time.NewTicker(leafPoll)
	defer poll.Stop()
	var linked uint64
	retry, next := wait.Backoff{First: minLeafDelay, Most: maxLeafDelay}, time.Now().Add(leafGrace)
	for {
		id, with := l.link()
		if id != linked {
			l.shut()
			linked, next = id, time.Now()
			retry.Reset()
			if id == 0 {
				next = next.Add(leafGrace)
			}
		}
		if l.closed() != nil && !time.Now().Before(next) {
			l.update(l.examine(ctx, id != 0), with)
			next = time.Now().Add(retry.Next())
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			l.shut()
			return
		}
	}
}

// link returns the id of the connection to the cluster, 0 if there is none, and the name of the cluster's server.
func (l *leaf) link() (id uint64, with string) {
	z, err := l.server.Leafz(&server.LeafzOptions{Account: clusterAccount})
	if err != nil || len(z.Leafs) == 0 {
		return 0, ""
	}
	return z.Leafs[0].ID, z.Leafs[0].Name
}

// examine returns nil if the account can be opened, and the reason otherwise.
func (l *leaf) examine(ctx context.Context, linked bool) error {
	l.cutOff() // clients that were admitted while the link was lost
	greeting, err := l.greet(ctx)
	switch {
	case err != nil:
		return err
	case greeting.Domain == "":
		return &Error{Code: CodeConfig, Message: "the cluster at " + l.shown + " has no JetStream domain, without which it does not answer through a leaf node",
			Remedy: fmt.Sprintf("set jetstream { domain: %s } in the configuration of all its servers", l.domain)}
	case greeting.Domain != l.domain:
		return &Error{Code: CodeConfig, Message: fmt.Sprintf("the JetStream domain of the cluster at %s is %.80q, not %q", l.shown, greeting.Domain, l.domain),
			Remedy: "set bus.leaf.domain to it"}
	case !linked:
		return l.refused()
	}
	if err := l.limit(greeting.MaxPayload); err != nil {
		return err
	}
	js, err := jetstream.New(l.conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if _, err := js.AccountInfo(ctx); err != nil {
		return jetStreamError(err, "the cluster at "+l.shown)
	}
	return nil
}

// refused returns the reason why the cluster's server answers and accepts no link.
func (l *leaf) refused() *Error {
	logged := l.logged.Load()
	if logged == nil {
		return &Error{Code: CodeNotRunning, Message: "the cluster at " + l.shown + " answers, and the link is being established", Remedy: "try again in a moment"}
	}
	if text := strings.ToLower(*logged); strings.Contains(text, "authorization") || strings.Contains(text, "authentication") {
		return errorf(CodeAuth, nil, "check those of bus.leaf, and that the user may connect as a leaf node",
			"the cluster at %s refused the hub's credentials (%s)", l.shown, *logged)
	}
	return errorf(CodeNetwork, nil, "see the logs of its servers", "the cluster at %s accepts no link: %s", l.shown, *logged)
}

// record keeps the server's last error message about links, which it repeats with every attempt.
// It reports whether a message is about links.
func (l *leaf) record(text string) bool {
	_, reason, ok := strings.Cut(text, "Leafnode Error ")
	if ok {
		reason = strings.Trim(reason, "'")
		l.logged.Store(&reason)
	}
	return ok || strings.Contains(strings.ToLower(text), "leaf") || strings.Contains(text, " - lid:")
}

// update opens the account, or records why it is closed. It logs each reason once.
func (l *leaf) update(err error, with string) {
	l.mu.Lock()
	before := l.why
	if err == nil {
		l.open, l.with, l.since, l.why = true, with, time.Now(), nil
	} else if l.why = asError(err); l.why == nil {
		l.why = connectError(err, l.shown, l.secrets)
	}
	why := l.why
	l.mu.Unlock()
	switch {
	case why == nil:
		l.logged.Store(nil)
		l.log.Info("linked to the cluster", "url", l.shown, "server", with)
	case before == nil || before.Message != why.Message:
		l.log.Warn("cannot link to the cluster, retrying", "error", why, "code", why.Code)
	}
}

// shut closes the account and disconnects its clients.
func (l *leaf) shut() {
	l.mu.Lock()
	was := l.open
	if was {
		l.open, l.since = false, time.Now()
		l.why = &Error{Code: CodeNotRunning, Message: "the link to the cluster at " + l.shown + " is lost", Remedy: "it is being restored: try again in a moment"}
	}
	l.mu.Unlock()
	if was {
		l.log.Warn("the link to the cluster is lost, reconnecting", "url", l.shown)
	}
	l.users.withdraw(clusterAccount, leafUser)
	l.cutOff()
}

// cutOff closes all connections to the account but the hub's.
func (l *leaf) cutOff() {
	conns, err := l.server.Connz(&server.ConnzOptions{Username: true, Account: clusterAccount, Limit: maxAllConnections})
	if err != nil {
		l.log.Warn("cannot list the connections behind the link to the cluster", "error", err)
		return
	}
	for _, c := range conns.Conns {
		if c.Kind == "Client" && c.AuthorizedUser != leafUser { // the link itself is among them
			_ = l.server.DisconnectClientByID(c.Cid) // an error means that it is already closed
		}
	}
}

// closed returns why the account is closed, nil while it is open.
func (l *leaf) closed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open {
		return nil
	}
	return &Error{Code: CodeNotRunning, Message: "the hub has no link to the agents' cluster: " + l.why.Message, Remedy: l.why.Remedy, Err: l.why}
}

func (l *leaf) info() *LeafInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := &LeafInfo{State: StateConnected, Since: l.since, URL: l.shown, Domain: l.domain, Server: l.with, MaxPayload: l.maxPayload}
	if !l.open {
		i.State, i.Server, i.LastError, i.Remedy = StateReconnecting, "", l.why.Message, l.why.Remedy
	}
	return i
}

// tlsFor returns the TLS configuration for one of the URLs, nil if TLS is not required.
func (l *leaf) tlsFor(u *url.URL) *tls.Config {
	if l.tls == nil {
		return nil
	}
	c := l.tls.Clone()
	if c.ServerName == "" {
		c.ServerName = u.Hostname()
	}
	return c
}
