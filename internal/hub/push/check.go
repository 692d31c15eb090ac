package push

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
)

var (
	validID     = text.Pattern(`^[A-Za-z0-9._~:-]+$`) // also fit for a URL's path
	validScheme = text.Pattern(`^[A-Za-z0-9!#$%&'*+.^_|~-]+$`)
)

// check validates a configuration. It checks the URL's text; guard checks the resolved address of every request.
func check(c Config, allowPrivate bool) error {
	if len(c.ID) > maxID || c.ID != "" && !validID().MatchString(c.ID) {
		return invalid("id must be at most %d letters, digits or any of . _ ~ : -", maxID)
	}
	if err := checkURL(c.URL, allowPrivate); err != nil {
		return err
	}
	if err := checkHeader("token", c.Token); err != nil {
		return err
	}
	if c.Auth == nil || *c.Auth == (a2a.PushAuthInfo{}) {
		return nil
	}
	if !validScheme().MatchString(c.Auth.Scheme) {
		return invalid("authentication.scheme must be the name of an HTTP authentication scheme, such as Bearer")
	}
	return checkHeader("authentication.credentials", c.Auth.Credentials)
}

func checkURL(raw string, allowPrivate bool) error {
	if raw == "" {
		return invalid("url is required")
	}
	if len(raw) > maxURL {
		return invalid("url must be at most %d bytes", maxURL)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return invalid("url is not a URL") // the parser's error could contain a secret
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return invalid("url must be http or https")
	case u.Hostname() == "":
		return invalid("url must name a host")
	case u.User != nil:
		return invalid("url must not hold credentials: use authentication")
	case allowPrivate:
		return nil
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return errPrivateURL
	}
	if ip, err := netip.ParseAddr(host); err == nil && !public(ip) {
		return errPrivateURL
	}
	return nil
}

var errPrivateURL = &Error{Code: CodeInvalid, Subject: "url", Message: "push configuration: url is on this machine or in a private network",
	Remedy: "set push.allowPrivate to true in the hub's configuration"}

func checkHeader(name, value string) error {
	if len(value) > maxSecret {
		return invalid("%s must be at most %d bytes", name, maxSecret)
	}
	if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return invalid("%s must not hold control characters", name)
	}
	return nil
}

func invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: "push configuration: " + fmt.Sprintf(format, args...)}
}

var errBlocked = errors.New("the webhook's address is on this machine or in a private network; push.allowPrivate in the hub's configuration permits it")

// special are the networks outside the public internet that netip.Addr does not recognize.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), // these carry an IPv4 address inside
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("100::/64"),
	netip.MustParsePrefix("2001:db8::/32"),
	netip.MustParsePrefix("fec0::/10"),
}

// public reports whether ip is an address of the public internet.
func public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return false
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// guard is called for each connection with its actual address, independent of earlier results of name resolution.
func guard(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", errBlocked, err)
	}
	if !public(ap.Addr()) {
		return errBlocked
	}
	return nil
}

// newClient returns the client for webhooks. It follows no redirects. Unless private networks are allowed, it uses
// no proxy, because guard would see only the proxy's address.
func newClient(allowPrivate bool, timeout time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    2,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if allowPrivate {
		transport.Proxy = http.ProxyFromEnvironment
	} else {
		dialer.ControlContext = guard
	}
	return &http.Client{
		Transport:     transport,
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
