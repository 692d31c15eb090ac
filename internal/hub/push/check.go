package push

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

var (
	validID     = regexp.MustCompile(`^[A-Za-z0-9._~:-]+$`) // also fit for a URL's path
	validScheme = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]+$`)
)

// check validates a configuration. It checks the URL's text; guard checks the resolved
// address of every request.
func check(c Config, allowPrivate bool) error {
	if len(c.ID) > maxID || c.ID != "" && !validID.MatchString(c.ID) {
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
	if !validScheme.MatchString(c.Auth.Scheme) {
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

var errPrivateURL = &Error{Code: CodeInvalid, Message: "url is on this machine or in a private network, which the hub's configuration does not allow"}

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
