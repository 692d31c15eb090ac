package a2a

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parleyhub/parley/internal/base/text"
)

// The supported versions.
const (
	v10 = a2a.Version
	v03 = a2av0.Version
)

const versionParam = "A2A-Version"

// requestedVersion returns the version in the header or the query parameter A2A-Version, "" for none.
func requestedVersion(h http.Header, query url.Values) (a2a.ProtocolVersion, error) {
	return parseVersion(cmp.Or(strings.TrimSpace(h.Get(versionParam)), strings.TrimSpace(query.Get(versionParam))))
}

// parseVersion accepts Major.Minor and ignores a patch number.
func parseVersion(asked string) (a2a.ProtocolVersion, error) {
	if asked == "" {
		return "", nil
	}
	parts := strings.SplitN(asked, ".", 3)
	if len(parts) >= 2 {
		switch version := a2a.ProtocolVersion(parts[0] + "." + parts[1]); version {
		case v10, v03:
			return version, nil
		}
	}
	return "", fault(a2a.ErrVersionNotSupported,
		fmt.Sprintf("A2A version %s is not supported; use %s or %s", text.Quote(asked, 64), v10, v03))
}

// methodVersion returns the version of a JSON-RPC method, for calls that name none:
// methods of 0.3 have a slash (message/send), those of 1.0 do not.
func methodVersion(method string) a2a.ProtocolVersion {
	if strings.Contains(method, "/") {
		return v03
	}
	return v10
}
