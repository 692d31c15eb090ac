package agentnet

import (
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/registry"
	"github.com/parleyhub/parley/internal/agentnet/store"
	"github.com/parleyhub/parley/internal/agentnet/work"
)

// Error is the error type of the agents' network, Code its code.
type (
	Error = store.Error
	Code  = store.Code
)

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return store.CodeOf(err) }

// The codes of an [Error].
const (
	ValidationError    = store.ValidationError
	NotFoundError      = store.NotFoundError
	NotRegisteredError = store.NotRegisteredError
	ConflictError      = store.ConflictError
	RateLimitError     = store.RateLimitError
	ConnectionError    = store.ConnectionError
	InternalError      = store.InternalError
)

// Inboxes says how a network stores its mail.
type Inboxes = store.Inboxes

// The ways to store mail.
const (
	InboxesPerAgent = store.InboxesPerAgent
	InboxesShared   = store.InboxesShared
)

// Types of the registry.
type (
	Registration     = registry.Registration
	Entry            = registry.Entry
	Summary          = registry.Summary
	Filter           = registry.Filter
	Discovery        = registry.Discovery
	Changes          = registry.Changes
	Liveness         = registry.Liveness
	Presence         = registry.Presence
	Scope            = registry.Scope
	Visibility       = registry.Visibility
	Removal          = registry.Removal
	AdmissionRequest = registry.AdmissionRequest
	ConnectionState  = registry.ConnectionState
)

// Values and limits of the registry.
const (
	ScopeUser         = registry.ScopeUser
	ScopeProject      = registry.ScopeProject
	ScopeCrossProject = registry.ScopeCrossProject

	Private     = store.Private
	ProjectOnly = store.ProjectOnly
	UserOnly    = store.UserOnly
	Public      = store.Public

	Active  = registry.Active
	Idle    = registry.Idle
	Busy    = registry.Busy
	Offline = registry.Offline

	Live            = registry.Live
	PossiblyOffline = registry.PossiblyOffline
	Gone            = registry.Gone

	NeverConnected = registry.NeverConnected
	Connected      = registry.Connected
	Disconnected   = registry.Disconnected

	DefaultDiscoverLimit = registry.DefaultDiscoverLimit
	MaxDiscoverLimit     = registry.MaxDiscoverLimit
)

// The lists of the registry's values.
var (
	Scopes       = registry.Scopes
	Visibilities = registry.Visibilities
	Presences    = registry.Presences
)

// Types of mail.
type (
	Mail          = mail.Mail
	Message       = mail.Message
	MessageType   = mail.MessageType
	MessageStatus = mail.MessageStatus
	Sent          = mail.Sent
	Selection     = mail.Selection
	Receipt       = mail.Receipt
	Offer         = mail.Offer
	Broadcast     = mail.Broadcast
	Offered       = mail.Offered
	OfferResult   = mail.OfferResult
)

// Values and limits of mail.
const (
	Direct         = mail.Direct
	WorkOffer      = mail.WorkOffer
	WorkClaim      = mail.WorkClaim
	WorkAccept     = mail.WorkAccept
	WorkReject     = mail.WorkReject
	ProgressUpdate = mail.ProgressUpdate
	Completion     = mail.Completion
	ErrorReport    = mail.ErrorReport

	Stored    = mail.Stored
	Delivered = mail.Delivered
	Read      = mail.Read
	Handled   = mail.Handled

	MaxMail          = mail.MaxMail
	DefaultMailLimit = mail.DefaultMailLimit
	MaxMailLimit     = mail.MaxMailLimit
)

// MessageTypes lists the types of messages.
var MessageTypes = mail.MessageTypes

// Types of work.
type (
	Submission    = work.Submission
	Claim         = work.Claim
	Outcome       = work.Outcome
	ItemState     = work.ItemState
	ItemStatus    = work.ItemStatus
	DeadLetter    = work.DeadLetter
	FailureReason = work.FailureReason
)

// Values and limits of work.
const (
	Queued    = work.Queued
	Claimed   = work.Claimed
	Completed = work.Completed
	Dead      = work.Dead
	Discarded = work.Discarded

	TimedOut     = work.TimedOut
	AgentOffline = work.AgentOffline
	Refused      = work.Refused

	DefaultAckTimeout  = store.DefaultAckTimeout
	DefaultMaxAttempts = store.DefaultMaxAttempts
	DefaultDeadLimit   = work.DefaultDeadLimit
	MaxDeadLimit       = work.MaxDeadLimit
)

// InboxPrefix is the prefix of the subjects on which an agent receives answers that the
// server confines to its GUID; "" for other agents, which use NATS's own.
func InboxPrefix(guid string) string { return store.InboxPrefix(guid) }

// ClusterInboxPrefix is [InboxPrefix] of an agent that uses its hub's link to a cluster.
func ClusterInboxPrefix(guid string) string { return store.ClusterInboxPrefix(guid) }
