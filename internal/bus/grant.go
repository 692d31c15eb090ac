package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/parleyhub/parley/internal/base/text"
)

// Access is the part of the embedded bus that a process may use.
type Access string

// The kinds of access.
const (
	// AccessProject is the namespace of one project, which NATS isolates from all others.
	AccessProject Access = "project"
	// AccessNetwork is the agents' network of this computer, which its projects share.
	AccessNetwork Access = "network"
	// AccessCluster is the cluster that the hub is linked to, with the rights of the hub.
	AccessCluster Access = "cluster"
	// AccessAgent is the part of the agents' network for one agent, see GrantRequest.
	AccessAgent Access = "agent"
)

// GlobalNamespace is reserved for data that all projects share. No project may use it.
const GlobalNamespace = "global"

var namespacePattern = text.Pattern(`^[a-z0-9-]{1,64}$`)

// GrantRequest is a process's request to join.
type GrantRequest struct {
	Access    Access // "" is AccessProject
	Namespace string // for AccessProject only
	// Publish and Subscribe are the only subjects that AccessAgent permits; at least one of each.
	Publish, Subscribe []string
	// Cluster applies AccessAgent to the cluster that the hub is linked to.
	Cluster bool
}

// A Grant admits one connection, within 30 s. It ends with the hub.
type Grant struct {
	User     string
	Password Secret
	Expires  time.Time // unless it is used before

	Address    string     // host:port on this machine
	StoreDir   string     // the directory that a joined process syncs, see Join
	Durability Durability // the effective mode
	PID        int        // of the hub
	// Syncs is whether the hub syncs what the process stores with PublishOnce.
	Syncs bool
	// ClockSet is the hub's, see [Bus.ClockSet].
	ClockSet time.Time
	// Cluster is the URL, without secrets, of the cluster behind the hub's link; empty for the hub's own bus.
	Cluster string
}

// networkAccount is the account of the agents' network.
const networkAccount = "agents-network"

// HasNetwork reports whether an embedded bus stores an agents' network: agents have joined it at some time.
func (b *Bus) HasNetwork() bool {
	if b.embedded == nil {
		return false
	}
	_, err := os.Stat(filepath.Join(b.dir, "jetstream", networkAccount))
	return err == nil
}

// maxConnections bounds the connections of one account.
const maxConnections = 1024

// Grant creates a new credential for an embedded bus. On any other Bus it fails with CodeUnsupported, for an invalid
// request with CodeConfig, and for too many connections with CodeLimit.
func (b *Bus) Grant(_ context.Context, req GrantRequest) (Grant, error) {
	if err := b.begin(); err != nil {
		return Grant{}, err
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return Grant{}, errorf(CodeUnsupported, nil, "configure that server's URL here too: NATS_URL, or natsUrl in .mcp-config.json",
			"the hub has no embedded bus: it uses an external NATS server")
	}
	if req.Access == AccessCluster || req.Cluster {
		return b.grantCluster(req)
	}
	user, err := b.embedded.admit(req)
	if err != nil {
		return Grant{}, err
	}
	g, err := b.issue(user)
	g.Syncs = err == nil && b.embedded.accounts.syncs(user.Account.Name)
	return g, err
}

// grantCluster is Grant for the cluster that the hub is linked to. It fails while the link is down.
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
	if err := b.Linked(); err != nil { // the link was lost, perhaps before the user could be withdrawn
		b.embedded.users.remove(user.Username)
		return Grant{}, err
	}
	g.StoreDir, g.Durability, g.ClockSet, g.Cluster = "", "", time.Time{}, b.embedded.leaf.shown
	return g, nil
}

// Linked returns nil while the hub's link to the cluster is up. The error has CodeUnsupported
// without a configured link, and CodeNotRunning otherwise.
func (b *Bus) Linked() error {
	if b.embedded == nil || b.embedded.leaf == nil {
		return &Error{Code: CodeUnsupported, Message: "the hub is not linked to a cluster of the agents' network",
			Remedy: "set bus.leaf in its config.yaml and restart it, see docs/network-operate.md; or set the cluster in crossComputer.natsClusterUrls"}
	}
	return b.embedded.leaf.closed()
}

// issue creates the Grant of a user.
func (b *Bus) issue(user server.User) (Grant, error) {
	expires := time.Now().Add(grantTTL)
	password, ok := b.embedded.users.add(user, expires)
	if !ok {
		return Grant{}, &Error{Code: CodeLimit, Message: "too many processes are joining the bus", Remedy: "try again in a moment"}
	}
	return Grant{
		User: user.Username, Password: Secret(password), Expires: expires,
		Address: b.embedded.address(), StoreDir: b.dir, Durability: b.mode, PID: os.Getpid(), ClockSet: b.ClockSet(),
	}, nil
}

// Revoke revokes a Grant by its user, and closes the connection that has used it.
func (b *Bus) Revoke(user string) error {
	if err := b.begin(); err != nil {
		return err
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return &Error{Code: CodeUnsupported, Message: "only an embedded bus has grants"}
	}
	if user == hubUser || user == leafUser {
		return &Error{Code: CodeConfig, Message: "the hub's own user has no grant", Remedy: "use the user of a grant"}
	}
	b.embedded.users.remove(user)
	return b.embedded.disconnect(user)
}

// BeginRest has the holder of a Grant of the agents' network, by its user, stay Admitted when its connection ends, until EndRest or Resume. It
// fails with CodeRejected for others, and during a rest.
func (b *Bus) BeginRest(user string) error {
	switch {
	case b.embedded == nil || !strings.HasPrefix(user, networkAccount+".") || !b.Admitted(user):
		return &Error{Code: CodeRejected, Message: "only a connection of the agents' network can rest"}
	case !b.embedded.users.rest(user):
		return &Error{Code: CodeRejected, Message: "the connection rests already"}
	}
	return nil
}

// EndRest ends the rest of a user, who is not Admitted any more unless it is connected.
func (b *Bus) EndRest(user string) { b.embedded.users.wake(user) }

// Resume ends the rest of a user with a Grant for a new connection. req has the access that the user had. It does not block.
func (b *Bus) Resume(user string, req GrantRequest) (Grant, error) {
	if err := b.begin(); err != nil {
		return Grant{}, err
	}
	defer b.inFlight.Done()
	acc, err := b.embedded.server.LookupAccount(networkAccount)
	if err != nil || !b.embedded.users.rests(user) {
		return Grant{}, &Error{Code: CodeRejected, Message: "the connection does not rest", Err: err}
	}
	u := server.User{Username: user, Account: acc}
	if req.Access == AccessAgent {
		u.Permissions = allow(req.Publish, req.Subscribe)
	}
	g, err := b.issue(u)
	g.Syncs = err == nil && b.embedded.accounts.syncs(acc.Name)
	b.embedded.users.wake(user)
	return g, err
}

// Admitted reports whether the holder of a Grant, by its user, is connected, rests, or may still connect.
// It is false unless the Bus is embedded.
func (b *Bus) Admitted(user string) bool {
	if b.begin() != nil {
		return false
	}
	defer b.inFlight.Done()
	if b.embedded == nil {
		return false
	}
	if b.embedded.users.unused(user) || b.embedded.users.rests(user) {
		return true
	}
	conns, err := b.embedded.server.Connz(&server.ConnzOptions{Username: true, User: user})
	return err == nil && len(conns.Conns) > 0
}

// admit returns a new user with the account and the permissions of a request's Access.
func (e *embedded) admit(req GrantRequest) (server.User, error) {
	// The prefix separates namespaces from the server's own accounts ($G, $SYS) and from the account of the network.
	name, limits, who := "ns-"+req.Namespace, projectLimits, "the namespace "+req.Namespace
	var permissions *server.Permissions
	switch req.Access {
	case AccessProject, "":
		if err := CheckNamespace(req.Namespace); err != nil {
			return server.User{}, err
		}
	case AccessNetwork:
		if req.Namespace != "" {
			return server.User{}, errNoNamespace
		}
		name, limits, who = networkAccount, networkLimits, "the agents' network"
	case AccessAgent:
		if req.Namespace != "" || len(req.Publish) == 0 || len(req.Subscribe) == 0 {
			return server.User{}, errNoSubjects
		}
		name, limits, who = networkAccount, networkLimits, "the agents' network"
		permissions = allow(req.Publish, req.Subscribe)
	default:
		return server.User{}, &Error{Code: CodeConfig, Message: fmt.Sprintf("unknown access %.80q", req.Access),
			Remedy: fmt.Sprintf("use %s or %s", AccessProject, AccessNetwork)}
	}
	acc, err := e.accounts.open(name, limits)
	if err != nil {
		return server.User{}, err
	}
	if name == networkAccount && acc.NumLocalConnections()+e.users.countResting() >= maxConnections {
		return server.User{}, tooMany(who)
	}
	return newUser(acc, who, permissions)
}

var (
	errNoNamespace = errorf(CodeConfig, nil, "omit it", "the agents' network has no namespace")
	errNoSubjects  = errorf(CodeConfig, nil, "register with the agents' network", "an agent's access is limited to the subjects that the hub permits")
)

func allow(publish, subscribe []string) *server.Permissions {
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: distinct(publish)}, Subscribe: &server.SubjectPermission{Allow: distinct(subscribe)}}
}

// distinct returns the subjects that no other one includes. The server has a tree of them for each connection, with half a kilobyte for
// each token.
func distinct(subjects []string) []string {
	var list []string
	for _, subject := range subjects {
		included := slices.ContainsFunc(subjects, func(by string) bool {
			return by != subject && strings.ContainsAny(by, "*>") && server.SubjectMatchesFilter(subject, by)
		})
		if !included && !slices.Contains(list, subject) {
			list = append(list, subject)
		}
	}
	return list
}

// admitCluster is admit for the cluster behind the link.
func (e *embedded) admitCluster(req GrantRequest) (server.User, error) {
	var permissions *server.Permissions
	switch {
	case req.Namespace != "":
		return server.User{}, errNoNamespace
	case req.Access == AccessAgent && len(req.Publish) > 0 && len(req.Subscribe) > 0:
		// The server checks the subject after its mapping.
		publish := make([]string, len(req.Publish))
		for i, subject := range req.Publish {
			publish[i] = e.leaf.clusterSubject(subject)
		}
		permissions = allow(publish, req.Subscribe)
	case req.Access != AccessCluster:
		return server.User{}, errNoSubjects
	}
	acc, err := e.server.LookupAccount(clusterAccount)
	if err != nil {
		return server.User{}, &Error{Code: CodeRejected, Message: "the bus has lost its account for the cluster", Err: err}
	}
	return newUser(acc, "the cluster", permissions)
}

// newUser returns a new user of an account, unless the account has too many connections.
func newUser(acc *server.Account, who string, permissions *server.Permissions) (server.User, error) {
	if acc.NumLocalConnections() >= maxConnections {
		return server.User{}, tooMany(who)
	}
	return server.User{Username: acc.Name + "." + strings.ToLower(rand.Text()[:12]), Account: acc, Permissions: permissions}, nil
}

func tooMany(who string) error {
	return errorf(CodeLimit, nil, "end some of them", "%d processes have already joined %s", maxConnections, who)
}

// disconnect closes the connections of a user.
func (e *embedded) disconnect(user string) error {
	conns, err := e.server.Connz(&server.ConnzOptions{Username: true, User: user})
	if err != nil {
		return &Error{Code: CodeRejected, Message: "cannot find the connections of " + user, Err: err}
	}
	var errs []error
	for _, c := range conns.Conns {
		errs = append(errs, e.server.DisconnectClientByID(c.Cid))
	}
	return errors.Join(errs...)
}

// CheckNamespace returns an error if a project cannot have this namespace.
func CheckNamespace(namespace string) error {
	switch {
	case !namespacePattern().MatchString(namespace):
		return &Error{Code: CodeConfig, Message: fmt.Sprintf("%.80q cannot be a namespace", namespace),
			Remedy: "use 1 to 64 lowercase letters, digits and hyphens"}
	case namespace == GlobalNamespace:
		return &Error{Code: CodeConfig, Message: "the namespace " + GlobalNamespace + " is reserved for data that all projects share",
			Remedy: "choose another namespace"}
	}
	return nil
}
