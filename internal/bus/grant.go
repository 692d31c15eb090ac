package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Access says what a process may do on the embedded bus.
type Access string

// The kinds of access.
const (
	// AccessProject is everything within one project's namespace, which NATS
	// itself keeps apart from all others, and nothing outside.
	AccessProject Access = "project"
	// AccessNetwork is the agents' network of this computer, which its projects
	// share, and nothing outside.
	AccessNetwork Access = "network"
	// AccessCluster is everything on the cluster that the hub is linked to, as far as
	// the cluster lets the hub.
	AccessCluster Access = "cluster"
	// AccessAgent is what one agent of that network may do, see GrantRequest.
	AccessAgent Access = "agent"
)

// GlobalNamespace belongs to what all projects share. No project may take it
// (REQ-DIRECT-002).
const GlobalNamespace = "global"

// namespacePattern is what a namespace looks like.
var namespacePattern = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// GrantRequest says what for a process wants to join.
type GrantRequest struct {
	Access    Access // "" is AccessProject
	Namespace string // for AccessProject only
	// Publish and Subscribe are the subjects that AccessAgent allows; at least one of
	// each. Everything else it may not.
	Publish, Subscribe []string
	// Cluster has AccessAgent mean the cluster that the hub is linked to.
	Cluster bool
}

// A Grant lets one connection in, within half a minute, and none after it. It
// does not outlive the hub.
type Grant struct {
	User     string
	Password Secret
	Expires  time.Time // if it is not used before

	Address    string     // host:port on this machine
	StoreDir   string     // what a joined process syncs, see Join
	Durability Durability // effective
	PID        int        // of the hub
	// Cluster is the URL, without secrets, of what the holder reaches through the hub's
	// link; empty for the hub's own bus.
	Cluster string
}

// networkAccount is the agents' network's.
const networkAccount = "agents-network"

// maxConnections bounds the connections of one account.
const maxConnections = 1024

// Grant gives a new credential for an embedded bus. Only the hub's process can:
// on any other Bus it fails with CodeUnsupported. A request that is wrong fails
// with CodeConfig, one too many with CodeLimit.
func (b *Bus) Grant(_ context.Context, req GrantRequest) (Grant, error) {
	if err := b.begin(); err != nil {
		return Grant{}, err
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return Grant{}, &Error{
			Code:    CodeUnsupported,
			Message: "the hub has no bus of its own: it uses an external NATS server",
			Remedy:  "configure that server's URL here too: NATS_URL, or natsUrl in .mcp-config.json",
		}
	}
	if req.Access == AccessCluster || req.Cluster {
		return b.grantCluster(req)
	}
	user, err := b.embedded.admit(req)
	if err != nil {
		return Grant{}, err
	}
	return b.issue(user)
}

// grantCluster is Grant for the cluster that the hub is linked to. There is none while
// the link is down.
func (b *Bus) grantCluster(req GrantRequest) (Grant, error) {
	if err := b.Linked(); err != nil {
		return Grant{}, err
	}
	user, err := b.embedded.admitCluster(req)
	if err != nil {
		return Grant{}, err
	}
	g, err := b.issue(user)
	if err != nil {
		return Grant{}, err
	}
	if err := b.Linked(); err != nil { // it fell meanwhile, perhaps before there was this user to withdraw
		b.embedded.users.remove(user.Username)
		return Grant{}, err
	}
	g.StoreDir, g.Durability, g.Cluster = "", "", b.embedded.leaf.shown
	return g, nil
}

// Linked returns nil while the cluster can be used that the hub is linked to, else the
// reason why not: CodeUnsupported without a link, CodeNotRunning with one.
func (b *Bus) Linked() error {
	if b.embedded == nil || b.embedded.leaf == nil {
		return &Error{Code: CodeUnsupported, Message: "the hub is not linked to a cluster of the agents' network",
			Remedy: "set bus.leaf in its config.yaml and restart it, see docs/network-operate.md; or name the cluster in crossComputer.natsClusterUrls"}
	}
	return b.embedded.leaf.closed()
}

// issue makes the credential of a user.
func (b *Bus) issue(user server.User) (Grant, error) {
	expires := time.Now().Add(grantTTL)
	password, ok := b.embedded.users.add(user, expires)
	if !ok {
		return Grant{}, &Error{Code: CodeLimit, Message: "too many processes are joining the bus", Remedy: "try again in a moment"}
	}
	return Grant{
		User: user.Username, Password: Secret(password), Expires: expires,
		Address: b.embedded.address(), StoreDir: b.dir, Durability: b.mode, PID: os.Getpid(),
	}, nil
}

// Revoke withdraws a Grant by its user: it cannot be used any more, and the
// connection that has used it is cut.
func (b *Bus) Revoke(user string) error {
	if err := b.begin(); err != nil {
		return err
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return &Error{Code: CodeUnsupported, Message: "only the hub's own bus has grants"}
	}
	if user == hubUser || user == leafUser {
		return &Error{Code: CodeConfig, Message: "the hub's own user is no grant", Remedy: "name the user of a grant"}
	}
	b.embedded.users.remove(user)
	return b.embedded.disconnect(user)
}

// Admitted says whether the holder of a Grant, by its user, is connected or may still
// connect. Only the hub's own bus knows.
func (b *Bus) Admitted(user string) bool {
	if b.begin() != nil {
		return false
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return false
	}
	if b.embedded.users.expects(user) {
		return true
	}
	conns, err := b.embedded.server.Connz(&server.ConnzOptions{Username: true, User: user})
	return err == nil && len(conns.Conns) > 0
}

// admit decides what a request's holder may do. What a further kind of Access
// is, its account and its permissions, is a case here.
func (e *embedded) admit(req GrantRequest) (server.User, error) {
	// The prefix keeps namespaces from the server's own accounts ($G, $SYS) and
	// from those that are no project's.
	name, limits, who := "ns-"+req.Namespace, projectLimits, "the namespace "+req.Namespace
	var permissions *server.Permissions
	switch req.Access {
	case AccessProject, "":
		if err := CheckNamespace(req.Namespace); err != nil {
			return server.User{}, err
		}
	case AccessNetwork:
		if req.Namespace != "" {
			return server.User{}, &Error{Code: CodeConfig, Message: "the agents' network has no namespace", Remedy: "leave it out"}
		}
		name, limits, who = networkAccount, networkLimits, "the agents' network"
	case AccessAgent:
		if req.Namespace != "" || len(req.Publish) == 0 || len(req.Subscribe) == 0 {
			return server.User{}, &Error{Code: CodeConfig, Message: "an agent's access is for the subjects that the hub allows it",
				Remedy: "register with the agents' network"}
		}
		name, limits, who = networkAccount, networkLimits, "the agents' network"
		permissions = &server.Permissions{Publish: &server.SubjectPermission{Allow: req.Publish}, Subscribe: &server.SubjectPermission{Allow: req.Subscribe}}
	default:
		return server.User{}, &Error{Code: CodeConfig, Message: fmt.Sprintf("unknown access %.80q", req.Access),
			Remedy: fmt.Sprintf("use %s or %s", AccessProject, AccessNetwork)}
	}
	acc, err := e.accounts.open(name, limits)
	if err != nil {
		return server.User{}, err
	}
	return guest(acc, who, permissions)
}

// admitCluster is admit for the cluster behind the link.
func (e *embedded) admitCluster(req GrantRequest) (server.User, error) {
	var permissions *server.Permissions
	switch {
	case req.Namespace != "":
		return server.User{}, &Error{Code: CodeConfig, Message: "the agents' network has no namespace", Remedy: "leave it out"}
	case req.Access == AccessAgent && len(req.Publish) > 0 && len(req.Subscribe) > 0:
		// The server checks what a subject is mapped to.
		publish := make([]string, len(req.Publish))
		for i, subject := range req.Publish {
			publish[i] = e.leaf.clusterSubject(subject)
		}
		permissions = &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: req.Subscribe}}
	case req.Access != AccessCluster:
		return server.User{}, &Error{Code: CodeConfig, Message: "an agent's access is for the subjects that the hub allows it",
			Remedy: "register with the agents' network"}
	}
	acc, err := e.server.LookupAccount(clusterAccount)
	if err != nil {
		return server.User{}, &Error{Code: CodeRejected, Message: "the bus has lost its account for the cluster", Err: err}
	}
	return guest(acc, "the cluster", permissions)
}

// guest is a new user of an account, unless it has too many.
func guest(acc *server.Account, who string, permissions *server.Permissions) (server.User, error) {
	if acc.NumLocalConnections() >= maxConnections {
		return server.User{}, &Error{Code: CodeLimit,
			Message: fmt.Sprintf("%d processes have joined %s already", maxConnections, who),
			Remedy:  "end some of them"}
	}
	return server.User{Username: acc.Name + "." + strings.ToLower(rand.Text()[:12]), Account: acc, Permissions: permissions}, nil
}

// disconnect cuts the connections of a user.
func (e *embedded) disconnect(user string) error {
	conns, err := e.server.Connz(&server.ConnzOptions{Username: true, User: user})
	if err != nil {
		return &Error{Code: CodeRejected, Message: "cannot look for the connections of " + user, Err: err}
	}
	var errs []error
	for _, c := range conns.Conns {
		errs = append(errs, e.server.DisconnectClientByID(c.Cid))
	}
	return errors.Join(errs...)
}

// CheckNamespace says whether a project may have this namespace.
func CheckNamespace(namespace string) error {
	switch {
	case !namespacePattern.MatchString(namespace):
		return &Error{Code: CodeConfig, Message: fmt.Sprintf("%.80q cannot be a namespace", namespace),
			Remedy: "use 1 to 64 lowercase letters, digits and hyphens"}
	case namespace == GlobalNamespace:
		return &Error{Code: CodeConfig, Message: "the namespace " + GlobalNamespace + " is reserved for what all projects share",
			Remedy: "choose another namespace"}
	}
	return nil
}
