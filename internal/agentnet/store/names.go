package store

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/google/uuid"

	"github.com/parleyhub/parley/internal/base/text"
)

// Subjects of the network. Programs outside the network do not use the prefix global.
const (
	InboxSubject   = "global.agent."
	QueueSubject   = "global.workqueue."
	DeadSubject    = QueueSubject + "deadletter"
	ItemSubject    = "global.work.item."
	ReceiptSubject = "global.mail.receipt."
	ReadSubject    = "global.mail.read."
	AuditSubject   = "global.audit.registry"
	TaskSubject    = "global.task." // followed by a session's GUID: what it says about its tasks
)

// Streams of the network.
const (
	InboxStreamPrefix = "GLOBAL_AGENT_INBOX_" // followed by the agent's GUID
	SharedInbox       = "GLOBAL_AGENT_INBOX"
	MailStream        = "GLOBAL_MAIL"
	QueueStreamPrefix = "GLOBAL_WORKQUEUE_"
	DeadStream        = "GLOBAL_WORKQUEUE_DEADLETTER"
	ItemStream        = "GLOBAL_WORK_ITEMS"
	AuditStream       = "GLOBAL_AUDIT"
	BucketStream      = "KV_"
	BucketKeys        = "$KV."
)

// QueueGroup is the durable consumer that all workers of a queue share.
const QueueGroup = "workers"

// MaxName bounds handles, agent types and capabilities, in bytes.
const MaxName = 64

var (
	nameRegexp = text.Pattern(`^[a-z0-9-]+$`)
	// queueRegexp matches queue names: a subject's token and part of a stream's name,
	// on disks that may be case-insensitive.
	queueRegexp = text.Pattern(`^[a-z0-9][a-z0-9_-]*$`)
)

// CheckName reports whether text may be an agent type or a handle.
func CheckName(what, text string) error {
	if len(text) <= MaxName && nameRegexp().MatchString(text) {
		return nil
	}
	return Invalid("Invalid %s %s.", what, Quote(text)).
		WithRemedy("It has lowercase letters, digits and hyphens only (pattern: ^[a-z0-9-]+$) and at most %d characters, for example: tdd-engineer.", MaxName)
}

// CheckBucket reports whether text may name the registry's bucket.
func CheckBucket(text string) error {
	if queueRegexp().MatchString(strings.ToLower(text)) {
		return nil
	}
	return Invalid("The bucket %s cannot be the registry's.", Quote(text)).WithRemedy("Use letters, digits, hyphens and underscores.")
}

// QueueName returns the name of a capability's queue.
func QueueName(capability string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(capability))
	if name == "deadletter" {
		return "", Invalid("The capability %s is reserved.", Quote(capability)).
			WithRemedy("Use list_dead_letter_items to see failed work.")
	}
	if len(name) > MaxName || !queueRegexp().MatchString(name) {
		return "", Invalid("The capability %s cannot name a work queue.", Quote(capability)).
			WithRemedy("Use letters, digits, hyphens and underscores, at most %d, for example: typescript.", MaxName)
	}
	return name, nil
}

// CheckGUID returns text in lower case if it is a GUID.
func CheckGUID(what, text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return "", Invalid("%s %s is not a GUID.", what, Quote(text)).
			WithRemedy("GUIDs look like 7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11; discover_agents lists those of the agents you can see.")
	}
	return id.String(), nil
}

// Digest shortens text to a key of 32 hex digits.
func Digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// InboxPrefix is the prefix of the subjects on which an agent receives answers that the
// server confines to its GUID; "" for other agents, which use NATS's own.
func InboxPrefix(guid string) string {
	if guid == "" {
		return ""
	}
	return "_INBOX_" + guid
}

// ClusterInboxPrefix is [InboxPrefix] of an agent that uses its hub's link to a cluster,
// where the hub's user may subscribe to all of _INBOX.
func ClusterInboxPrefix(guid string) string { return "_INBOX." + guid }
