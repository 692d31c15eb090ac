package bus

import "time"

// Kind is where a Bus's server is.
type Kind string

// The kinds of a Bus.
const (
	KindEmbedded Kind = "embedded" // in this process
	KindJoined   Kind = "joined"   // in the hub's process
	KindExternal Kind = "external" // an external server
	KindLinked   Kind = "linked"   // the cluster behind the hub's link
)

// IsLocal reports whether the server is known to be on this computer, so that both have one clock.
func (b *Bus) IsLocal() bool { return b.kind == KindEmbedded || b.kind == KindJoined }

// Info describes a Bus, for status and doctor. It holds no secrets.
type Info struct {
	Kind          Kind   `json:"kind"`
	URL           string `json:"url"` // several are separated by commas
	ServerName    string `json:"serverName,omitempty"`
	ServerVersion string `json:"serverVersion,omitempty"`

	State      State     `json:"state"`
	Since      time.Time `json:"since"` // of the state
	Reconnects int       `json:"reconnects"`
	// LastError is the error of the last attempt to reconnect.
	LastError string `json:"lastError,omitempty"`

	// Durability is the effective mode; empty for an external server.
	Durability Durability `json:"durability,omitempty"`
	// DurabilityAsked is the configured mode; it differs if the filesystem does not support
	// it, for DurabilityReason.
	DurabilityAsked  Durability `json:"durabilityAsked,omitempty"`
	DurabilityReason string     `json:"durabilityReason,omitempty"`
	// StorageError is the error that keeps some or all streams from storing messages.
	StorageError string `json:"storageError,omitempty"`

	StoreDir string `json:"storeDir,omitempty"`
	// Damage of the embedded store that is not settled; nil without any.
	Damage *DamageInfo `json:"damage,omitempty"`
	// HubPID is the process with the server of a joined Bus.
	HubPID int `json:"hubPid,omitempty"`
	// Leaf is an embedded bus's link to a cluster; nil without one.
	Leaf *LeafInfo `json:"leaf,omitempty"`
}

// Info returns the Info of the Bus. It does not block.
func (b *Bus) Info() Info {
	st := b.link.status()
	i := Info{
		Kind: b.kind, URL: b.url, StoreDir: b.dir, Durability: b.durability(), DurabilityAsked: b.asked,
		State: st.state, Since: st.since, Reconnects: st.reconnects,
	}
	if st.state == StateConnected { // otherwise both block while an attempt to connect is under way
		i.ServerName, i.ServerVersion = b.conn.ConnectedServerName(), b.conn.ConnectedServerVersion()
	}
	if st.lastErr != nil {
		i.LastError = st.lastErr.Error()
	}
	if b.degraded != nil {
		i.DurabilityReason = b.degraded.Error()
	}
	if b.commits != nil {
		if err := b.commits.err(); err != nil {
			i.StorageError = err.Error()
		}
	}
	if b.disk != nil && i.StorageError == "" {
		if _, full := b.disk.look(); full {
			i.StorageError = b.disk.fullError(nil).Error()
		}
	}
	if b.embedded != nil && i.StorageError == "" {
		i.StorageError = b.embedded.storageError()
	}
	if b.damage != nil {
		i.Damage = b.damageInfo()
	}
	if b.embedded != nil && b.embedded.leaf != nil {
		i.Leaf = b.embedded.leaf.info()
	}
	if b.hub != nil {
		r := b.hub.current()
		i.URL, i.HubPID = "nats://"+r.Address, r.PID
		if r.Cluster != "" {
			i.URL = r.Cluster
		}
	}
	return i
}
