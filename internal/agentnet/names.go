package agentnet

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// Subjects of the network. The prefix is reserved for it (REQ-DIRECT-002).
const (
	inboxSubject   = "global.agent."
	queueSubject   = "global.workqueue."
	deadSubject    = queueSubject + "deadletter"
	itemSubject    = "global.work.item."
	receiptSubject = "global.mail.receipt."
	readSubject    = "global.mail.read."
	auditSubject   = "global.audit.registry"
)

// Streams of the network.
const (
	inboxPrefix  = "GLOBAL_AGENT_INBOX_" // and the agent's GUID (REQ-DIRECT-004)
	sharedInbox  = "GLOBAL_AGENT_INBOX"
	mailStream   = "GLOBAL_MAIL"
	queuePrefix  = "GLOBAL_WORKQUEUE_"
	deadStream   = "GLOBAL_WORKQUEUE_DEADLETTER"
	itemStream   = "GLOBAL_WORK_ITEMS"
	auditStream  = "GLOBAL_AUDIT"
	bucketStream = "KV_"
	bucketKeys   = "$KV."
)

// queueGroup is the durable consumer that all workers of a queue share
// (REQ-WORKQUEUE-003).
const queueGroup = "workers"

// maxName bounds handles, agent types and capabilities, in bytes.
const maxName = 64

var (
	nameRegexp = regexp.MustCompile(`^[a-z0-9-]+$`)
	// queueRegexp is what names a queue: a subject's token and part of a
	// stream's name, on disks that do not tell upper from lower case.
	queueRegexp = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
)

// checkName says whether text may be an agent type or a handle.
func checkName(what, text string) error {
	if len(text) <= maxName && nameRegexp.MatchString(text) {
		return nil
	}
	return invalid("Invalid %s %s.", what, quote(text)).
		WithRemedy("It has lowercase letters, digits and hyphens only (pattern: ^[a-z0-9-]+$) and at most %d characters, for example: tdd-engineer.", maxName)
}

// queueName is the queue of a capability.
func queueName(capability string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(capability))
	if name == "deadletter" {
		return "", invalid("The capability %s is reserved.", quote(capability)).
			WithRemedy("Use list_dead_letter_items to see failed work.")
	}
	if len(name) > maxName || !queueRegexp.MatchString(name) {
		return "", invalid("The capability %s cannot name a work queue.", quote(capability)).
			WithRemedy("Use letters, digits, hyphens and underscores, at most %d, for example: typescript.", maxName)
	}
	return name, nil
}

// checkGUID says whether text is a GUID, and returns it in lower case.
func checkGUID(what, text string) (string, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return "", invalid("%s %s is not a GUID.", what, quote(text)).
			WithRemedy("GUIDs look like 7f3c1a52-8a0e-4f5b-9d55-0d7c9f1f2b11; discover_agents lists those of the agents you can see.")
	}
	return id.String(), nil
}

// digest shortens text to a key of 32 hex digits.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// itemKey is the last token of an item's subject: task ids are free text.
func itemKey(taskID string) string { return digest(taskID) }
