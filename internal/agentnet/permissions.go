package agentnet

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/parleyhub/parley/internal/agentnet/store"
)

// Confined is an agent that the NATS server confines.
type Confined struct {
	GUID         string
	Bucket       string   // of the registry; "" is the default
	Capabilities []string // whose queues it works on or submits to

	slot string // key of the identity's record; "" for the one of a configured GUID
}

// Check returns c with its GUID and capabilities in lower case. It refuses what cannot be
// part of a subject: a wildcard would give the agent access to other subjects.
func (c Confined) Check() (Confined, error) {
	guid, err := store.CheckGUID("guid", c.GUID)
	if err == nil && c.Bucket != "" {
		err = store.CheckBucket(c.Bucket)
	}
	if err != nil {
		return Confined{}, err
	}
	checked := Confined{GUID: guid, Bucket: c.Bucket}
	for _, capability := range c.Capabilities {
		name, err := store.QueueName(capability)
		if err != nil {
			return Confined{}, err
		}
		checked.Capabilities = append(checked.Capabilities, name)
	}
	return checked, nil
}

// Permissions are subjects that a NATS user may publish and subscribe to.
type Permissions struct {
	Publish, Subscribe []string
}

// Permissions returns what an agent that was checked needs in the agents' network, and nothing more: its own entry
// in the registry, its own inbox, its queues. They are for a network with an inbox for each agent, whose streams an
// operator has made (see MakeInbox, MakeQueue): a user that can make a stream or a consumer can have it read from,
// or deliver to, any other. A project's channels, which need consumers, belong in a NATS account of the project's
// own.
//
// NATS cannot prevent the following: an agent that can send mail can send it in another's name, one that can work
// can change the record of any item, one that can claim files can end others' claims, and one that can see the status of its mail sees who writes to whom.
func (c Confined) Permissions() Permissions {
	cfg := store.Config{Bucket: cmp.Or(c.Bucket, store.DefaultBucket)}
	registry, identities, limits := cfg.RegistryStream(), store.BucketStream+cfg.IdentityBucket(), store.BucketStream+cfg.LimitsBucket()
	files := store.BucketStream + cfg.ClaimsBucket()
	inbox := store.InboxStreamPrefix + c.GUID
	p := Permissions{
		Subscribe: []string{store.InboxPrefix(c.GUID) + ".>", store.InboxSubject + c.GUID, store.ItemSubject + "*"},
		Publish:   []string{"$JS.API.INFO"},
	}
	allow := func(prefix string, streams ...string) {
		for _, stream := range streams {
			p.Publish = append(p.Publish, prefix+stream)
		}
	}
	allow("$JS.API.STREAM.INFO.", registry, identities, limits, store.MailStream, store.DeadStream, store.ItemStream, store.AuditStream, store.SharedInbox, inbox)
	allow("$JS.API.STREAM.MSG.GET.", registry, identities, limits, files, store.MailStream, store.ItemStream)
	allow("$JS.API.DIRECT.GET.", registry, files, store.MailStream, store.DeadStream, store.ItemStream, inbox)
	p.Publish = append(p.Publish,
		cfg.EntryKey(c.GUID).Subject,
		cfg.IdentityKey(cmp.Or(c.slot, "fixed."+c.GUID)).Subject, cfg.IdentityKey("guid."+c.GUID).Subject,
		store.BucketKeys+cfg.LimitsBucket()+"."+c.GUID+".*",
		cfg.ClaimsKey("*").Subject,
		"$JS.API.STREAM.PURGE."+inbox,
		store.InboxSubject+"*", store.ReceiptSubject+c.GUID+".*.*", store.ReceiptSubject+"*."+c.GUID+".*", store.ReadSubject+c.GUID,
		store.ItemSubject+"*", store.DeadSubject, "$JS.API.STREAM.MSG.DELETE."+store.DeadStream, store.TaskSubject+c.GUID+".*")
	for _, capability := range c.Capabilities {
		stream := store.QueueStreamPrefix + capability
		p.Publish = append(p.Publish,
			store.QueueSubject+capability,
			"$JS.API.STREAM.INFO."+stream,
			fmt.Sprintf("$JS.API.CONSUMER.INFO.%s.%s", stream, store.QueueGroup),
			fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, store.QueueGroup),
			fmt.Sprintf("$JS.ACK.%s.%s.>", stream, store.QueueGroup))
	}
	return p
}

// LinkedHub returns what the user of a computer's hub needs that is linked to the cluster as a leaf node, whose
// servers have this JetStream domain. The hub makes inboxes and queues for its agents and confines each of them
// itself; that takes all of the account's JetStream, so the account should contain only the network. A leaf node
// learns of a stream only if it may publish to all its subjects.
func LinkedHub(domain string) Permissions {
	return Permissions{
		Publish: []string{"$JS." + domain + ".API.>", "$JS.API.>", store.BucketKeys + ">", "$JS.ACK.>", store.InboxSubject + "*", store.ReceiptSubject + ">", store.ReadSubject + "*",
			store.ItemSubject + "*", store.QueueSubject + "*", store.AuditSubject},
		Subscribe: []string{"_INBOX.>", store.InboxSubject + "*", store.ItemSubject + "*"},
	}
}

// String formats the permissions for a NATS server's configuration.
func (p Permissions) String() string {
	var b strings.Builder
	b.WriteString("permissions: {\n")
	for _, side := range []struct {
		name     string
		subjects []string
	}{{"publish", p.Publish}, {"subscribe", p.Subscribe}} {
		fmt.Fprintf(&b, "  %s: [\n", side.name)
		for _, subject := range side.subjects {
			fmt.Fprintf(&b, "    %q\n", subject)
		}
		b.WriteString("  ]\n")
	}
	b.WriteString("}\n")
	return b.String()
}
