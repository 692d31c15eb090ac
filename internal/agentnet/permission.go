package agentnet

import (
	"fmt"
	"strings"
)

// InboxPrefix is where answers come to for an agent that the server confines to
// its GUID; "" for others, which have NATS's own.
func InboxPrefix(guid string) string {
	if guid == "" {
		return ""
	}
	return "_INBOX_" + guid
}

// ClusterInboxPrefix is [InboxPrefix] of an agent that reaches the cluster through its
// hub's link, whose user at the cluster has all of _INBOX.
func ClusterInboxPrefix(guid string) string { return "_INBOX." + guid }

// Confined is an agent that the NATS server confines.
type Confined struct {
	GUID         string
	Bucket       string   // of the registry; "" is DefaultBucket
	Capabilities []string // whose queues it works on or submits to
}

// Check returns c as the network knows it, its GUID and capabilities in lower case, or
// says what cannot be part of a subject: a wildcard would let the agent in elsewhere.
func (c Confined) Check() (Confined, error) {
	guid, err := checkGUID("guid", c.GUID)
	if err != nil {
		return Confined{}, err
	}
	checked := Confined{GUID: guid, Bucket: c.Bucket}
	if c.Bucket != "" && !queueRegexp.MatchString(strings.ToLower(c.Bucket)) {
		return Confined{}, invalid("The bucket %s cannot be the registry's.", quote(c.Bucket)).WithRemedy("Use letters, digits, hyphens and underscores.")
	}
	for _, capability := range c.Capabilities {
		name, err := queueName(capability)
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

// Permissions returns what an agent that was checked needs in the agents' network, and nothing
// more: its own entry in the registry, its own inbox, its queues. They are for a
// network with an inbox for each agent, whose streams an operator has made (see
// MakeInbox, MakeQueue): who may make a stream or a consumer can have it read
// from, or deliver to, any other. A project's channels, which need consumers,
// belong in a NATS account of the project's own.
//
// What NATS cannot tell apart stays possible: who may send mail may send it in
// another's name, who may work may change the record of any item, and who may
// see what became of its mail sees who writes to whom.
func (c Confined) Permissions() Permissions {
	bucket := or(c.Bucket, DefaultBucket)
	identities, limits := bucket+"-identities", bucket+"-limits"
	inbox := inboxPrefix + c.GUID
	p := Permissions{
		Subscribe: []string{InboxPrefix(c.GUID) + ".>", inboxSubject + c.GUID, itemSubject + "*"},
		Publish:   []string{"$JS.API.INFO"},
	}
	for _, stream := range []string{bucketStream + bucket, bucketStream + identities, bucketStream + limits,
		mailStream, deadStream, itemStream, auditStream, sharedInbox, inbox} {
		p.Publish = append(p.Publish, "$JS.API.STREAM.INFO."+stream)
	}
	for _, stream := range []string{bucketStream + bucket, bucketStream + identities, bucketStream + limits, mailStream, itemStream} {
		p.Publish = append(p.Publish, "$JS.API.STREAM.MSG.GET."+stream)
	}
	for _, stream := range []string{bucketStream + bucket, mailStream, deadStream, inbox} {
		p.Publish = append(p.Publish, "$JS.API.DIRECT.GET."+stream)
	}
	p.Publish = append(p.Publish,
		bucketKeys+bucket+"."+c.GUID,
		bucketKeys+identities+".fixed."+c.GUID, bucketKeys+identities+".guid."+c.GUID,
		bucketKeys+limits+"."+c.GUID+".*",
		"$JS.API.STREAM.PURGE."+inbox,
		inboxSubject+"*", receiptSubject+c.GUID+".*.*", receiptSubject+"*."+c.GUID+".*", readSubject+c.GUID,
		itemSubject+"*", deadSubject, "$JS.API.STREAM.MSG.DELETE."+deadStream)
	for _, capability := range c.Capabilities {
		p.Publish = append(p.Publish, queuePermissions(capability)...)
	}
	return p
}

// LinkedHub returns what the user of a computer's hub needs that is linked to the cluster
// as a leaf node, whose servers have this JetStream domain. The hub makes inboxes and
// queues for its agents and confines each of them by itself; that takes all of the
// account's JetStream, so the account should have nothing but the network. A leaf node hears
// of a stream only if it may publish to all its subjects.
func LinkedHub(domain string) Permissions {
	return Permissions{
		Publish: []string{"$JS." + domain + ".API.>", "$JS.API.>", bucketKeys + ">", "$JS.ACK.>", inboxSubject + "*", receiptSubject + ">", readSubject + "*",
			itemSubject + "*", queueSubject + "*", auditSubject},
		Subscribe: []string{"_INBOX.>", inboxSubject + "*", itemSubject + "*"},
	}
}

func queuePermissions(capability string) []string {
	stream := queuePrefix + capability
	return []string{
		queueSubject + capability,
		"$JS.API.STREAM.INFO." + stream,
		fmt.Sprintf("$JS.API.CONSUMER.INFO.%s.%s", stream, queueGroup),
		fmt.Sprintf("$JS.API.CONSUMER.MSG.NEXT.%s.%s", stream, queueGroup),
		fmt.Sprintf("$JS.ACK.%s.%s.>", stream, queueGroup),
	}
}

// String writes the permissions as a NATS server's configuration has them.
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
