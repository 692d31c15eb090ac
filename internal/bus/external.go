package bus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// remote is the configured external server or cluster.
type remote struct {
	urls    []string // with credentials
	shown   string   // without credentials
	secrets []string // to be removed from messages
	options []nats.Option
}

// newRemote checks the URL and the credentials. Its errors contain no secret.
func newRemote(cfg Config) (*remote, error) {
	r := &remote{}
	inURL := false
	var shown []string
	for i, raw := range strings.Split(string(cfg.URL), ",") {
		u, err := parseURL(strings.TrimSpace(raw))
		if err != nil {
			return nil, errorf(CodeConfig, nil, "write it as nats://host:4222 or tls://host:4222",
				"URL %d of the NATS server: %v", i+1, err)
		}
		if u.User != nil {
			inURL = true
			r.secrets = append(r.secrets, userinfoSecrets(u.User)...)
		}
		r.urls = append(r.urls, u.String())
		shown = append(shown, u.Scheme+"://"+u.Host)
	}
	r.shown = strings.Join(shown, ",")
	r.secrets = append(r.secrets, string(cfg.Credentials.Password), string(cfg.Credentials.Token))

	auth, err := cfg.Credentials.authOption(inURL)
	if err != nil {
		return nil, err
	}
	if auth != nil {
		r.options = append(r.options, auth)
	}
	tlsConfig, err := cfg.Credentials.tlsConfig()
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		r.options = append(r.options, nats.Secure(tlsConfig))
	}
	if cfg.InboxPrefix != "" {
		r.options = append(r.options, nats.CustomInboxPrefix(cfg.InboxPrefix))
	}
	return r, nil
}

// parseURL parses one URL. Its errors do not contain the text, which may have a password.
func parseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, errors.New("it is empty")
	}
	if !strings.Contains(raw, "://") {
		raw = "nats://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("it is not a URL")
	}
	if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
		return nil, fmt.Errorf("scheme %q is none of nats, tls, ws, wss", u.Scheme)
	}
	if u.Hostname() == "" {
		return nil, errors.New("it has no host")
	}
	return u, nil
}

// userinfoSecrets returns a URL's secrets: the password, or the token in place of the user.
func userinfoSecrets(ui *url.Userinfo) []string {
	if p, ok := ui.Password(); ok {
		return []string{p, url.QueryEscape(p)}
	}
	return []string{ui.Username()}
}

// authOption returns nil without credentials.
func (c Credentials) authOption(inURL bool) (nats.Option, error) {
	ways := 0
	for _, given := range []bool{inURL, c.User != "" || c.Password != "", c.Token != "", c.NKeyFile != "", c.File != ""} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return nil, errorf(CodeConfig, nil, "keep one of: credentials in the URL, user and password, token, NKey file, credentials file",
			"the bus has more than one method to authenticate")
	}
	switch {
	case c.User != "" || c.Password != "":
		return nats.UserInfo(c.User, string(c.Password)), nil
	case c.Token != "":
		return nats.Token(string(c.Token)), nil
	case c.NKeyFile != "":
		option, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fileError("the NKey file", c.NKeyFile, err)
		}
		return option, nil
	case c.File != "":
		if err := checkCredentialsFile(c.File); err != nil {
			return nil, fileError("the credentials file", c.File, err)
		}
		return nats.UserCredentials(c.File), nil
	}
	return nil, nil
}

// checkCredentialsFile verifies that a file has a JWT and a seed: nats.go would report a missing
// one only during authentication.
func checkCredentialsFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if _, err := nkeys.ParseDecoratedJWT(data); err != nil {
		return err
	}
	key, err := nkeys.ParseDecoratedUserNKey(data)
	if err != nil {
		return err
	}
	key.Wipe()
	return nil
}

// tlsConfig returns nil if the server may decide whether to use TLS.
func (c Credentials) tlsConfig() (*tls.Config, error) {
	if !c.TLS && !c.InsecureSkipVerify && c.CAFile == "" && c.CertFile == "" && c.KeyFile == "" && c.ServerName == "" {
		return nil, nil
	}
	conf := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         c.ServerName,
		InsecureSkipVerify: c.InsecureSkipVerify, //nolint:gosec // the user's explicit choice, and the bus warns
	}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fileError("the CA file", c.CAFile, err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fileError("the CA file", c.CAFile, errors.New("no certificate in it"))
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errorf(CodeConfig, nil, "configure both or none",
			"a client certificate needs both a certificate file and a key file")
	}
	if c.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fileError("the client certificate", c.CertFile, err)
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return conf, nil
}

// openExternal connects to the configured server, and verifies that it has JetStream.
func (b *Bus) openExternal(ctx context.Context, cfg Config) error {
	r, err := newRemote(cfg)
	if err != nil {
		return err
	}
	r.warn(cfg)
	b.kind = KindExternal
	b.url = r.shown
	b.link = newLink(b.log, r.shown, MaxDelay, r.secrets...)
	stop := context.AfterFunc(ctx, b.link.stop)
	err = b.connect(cfg, strings.Join(r.urls, ","), r.options...)
	stop()
	if ctx.Err() != nil {
		return contextError(ctx.Err(), "connecting to "+r.shown)
	}
	if err != nil {
		return connectError(tellingError(cfg, r, err), r.shown, r.secrets)
	}
	if err := b.checkJetStream(ctx); err != nil {
		return jetStreamError(err, r.shown)
	}
	b.log.Info("bus connected", "url", r.shown, "server", b.conn.ConnectedServerName(), "version", b.conn.ConnectedServerVersion())
	return nil
}

func (r *remote) warn(cfg Config) {
	if cfg.Credentials.InsecureSkipVerify {
		cfg.Logger.Warn("the NATS server's certificate is not verified: anyone on the network path can read and change messages", "url", r.shown)
	}
}

// Dial connects to the external server of cfg for messages without JetStream. It retries in the
// background until the server can be reached and accepts the credentials, and logs the reason if
// not; its error is an error of the configuration. The caller closes the connection.
func Dial(cfg Config) (*nats.Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r, err := newRemote(cfg)
	if err != nil {
		return nil, err
	}
	r.warn(cfg)
	l := newLink(cfg.Logger, r.shown, maxSharedDelay, r.secrets...)
	conn, err := l.dial(cfg, strings.Join(r.urls, ","), append(r.options, nats.RetryOnFailedConnect(true), nats.ConnectHandler(func(conn *nats.Conn) {
		cfg.Logger.Info("connected", "url", r.shown, "server", conn.ConnectedServerName())
	}))...)
	if err != nil {
		return nil, connectError(err, r.shown, r.secrets)
	}
	return conn, nil
}

// maxSharedDelay is the longest pause between two attempts of a connection of Dial.
const maxSharedDelay = 15 * time.Second

// tellingError returns the most specific error of several servers: nats.go returns that of the last one.
func tellingError(cfg Config, r *remote, err error) error {
	if len(r.urls) == 1 {
		return err
	}
	best := telling(connectError(err, "", nil))
	for _, u := range r.urls {
		opts := append([]nats.Option{nats.Name(cfg.Name), nats.Timeout(connectTimeout), nats.NoReconnect()}, r.options...)
		conn, oneErr := nats.Connect(u, opts...)
		if oneErr == nil {
			conn.Close() // it has just started; the caller's next attempt will succeed
			continue
		}
		if n := telling(connectError(oneErr, "", nil)); n > best {
			best, err = n, oneErr
		}
	}
	return err
}

// telling ranks errors by how specific they are.
func telling(e *Error) int {
	switch e.Code {
	case CodeAuth:
		return 2
	case CodeNetwork:
		return 1
	}
	return 0
}

// checkJetStream requests the account's information, whose errors are specific.
func (b *Bus) checkJetStream(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, connectTimeout)
	defer stop()
	ctx, cancel := b.link.untilDenied(ctx, func(string) bool { return true })
	defer cancel()

	_, err := b.js.AccountInfo(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, nats.ErrPermissionViolation) {
		return cause
	}
	return err
}

// Usage is the use of JetStream by the account of a Bus.
type Usage struct {
	StoreBytes uint64 `json:"storeBytes"`
	// StoreLimit is the limit, in bytes; -1 for none.
	StoreLimit int64 `json:"storeLimit"`
	Streams    int   `json:"streams"`
	Consumers  int   `json:"consumers"`
}

// Usage requests the Usage from the server.
func (b *Bus) Usage(ctx context.Context) (Usage, error) {
	info, err := b.js.AccountInfo(ctx)
	if err != nil {
		return Usage{}, requestError(err, "read the use of the store")
	}
	u := Usage{StoreBytes: info.Store, StoreLimit: info.Limits.MaxStore, Streams: info.Streams, Consumers: info.Consumers}
	if b.embedded != nil {
		u.StoreLimit = b.embedded.maxStore
	}
	return u, nil
}
