package chat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/bus"
)

// Keys of a stream's metadata: what the names below are made of. Two
// namespaces can come to the same stream name ("a_b" and "c", "a" and "b_c"),
// so the name alone proves nothing.
const (
	metaNamespace = "parley.namespace"
	metaChannel   = "parley.channel"
)

// subject is where a channel's messages are published (REQ-NAMESPACE-005).
func (s *Space) subject(channel string) string { return s.cfg.Namespace + "." + channel }

// streamName is the stream that stores them (REQ-NAMESPACE-006).
func (s *Space) streamName(channel string) string {
	return s.cfg.Namespace + "_" + strings.ToUpper(strings.ReplaceAll(channel, "-", "_"))
}

// ensureAll makes the streams of all channels (REQ-CONFIG-009). What fails is
// tried again by the first use.
func (s *Space) ensureAll(ctx context.Context) {
	for _, c := range s.cfg.Channels {
		if err := s.ensureOne(ctx, c); err != nil && ctx.Err() == nil {
			s.log.Error("a channel is not ready", "channel", c.Name, "error", err)
		}
	}
}

func (s *Space) ensureOne(ctx context.Context, c Channel) error {
	b, err := s.connected()
	if err != nil {
		return err
	}
	return s.ensure(ctx, b, c)
}

// ensure makes the stream of a channel, or changes it to what the configuration
// says now (REQ-CONFIG-010). It has requestTimeout for that.
func (s *Space) ensure(ctx context.Context, b *bus.Bus, c Channel) error {
	s.mu.Lock()
	ready := s.ensured[c.Name]
	s.mu.Unlock()
	if ready {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	want := s.streamConfig(c)
	stream, err := b.JetStream().Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
	case err != nil:
		return unanswered(b, err)
	default:
		have := stream.CachedInfo().Config
		if err := s.checkOwner(c, have); err != nil {
			return err
		}
		if current(have, want) {
			s.setEnsured(c.Name, true)
			return nil
		}
		want = merge(have, want)
	}
	if _, err := b.EnsureStream(ctx, want); err != nil {
		return streamError(b, c, err)
	}
	s.log.Debug("stream ready", "stream", want.Name, "subject", s.subject(c.Name))
	s.setEnsured(c.Name, true)
	return nil
}

func (s *Space) setEnsured(channel string, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensured[channel] = ready
}

// forgetEnsured makes every channel be looked at again: the server may be
// another one now.
func (s *Space) forgetEnsured() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.ensured)
}

// streamConfig is a channel's stream (REQ-STORAGE-002, REQ-STORAGE-003,
// REQ-STORAGE-004).
func (s *Space) streamConfig(c Channel) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        s.streamName(c.Name),
		Description: c.Description,
		Subjects:    []string{s.subject(c.Name)},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		MaxMsgs:     c.MaxMessages,
		MaxBytes:    c.MaxBytes,
		MaxAge:      c.MaxAge,
		AllowDirect: true,
		Metadata:    map[string]string{metaNamespace: s.cfg.Namespace, metaChannel: c.Name},
	}
}

// checkOwner refuses a stream of that name that is another's. One without our
// metadata that has just our subject is adopted: another implementation of the
// specification made it.
func (s *Space) checkOwner(c Channel, have jetstream.StreamConfig) error {
	namespace, channel := have.Metadata[metaNamespace], have.Metadata[metaChannel]
	ours := namespace == s.cfg.Namespace && channel == c.Name
	unmarked := namespace == "" && channel == "" && slices.Equal(have.Subjects, []string{s.subject(c.Name)})
	if ours || unmarked {
		return s.checkKind(c, have)
	}
	return &Error{
		Category: ConflictError,
		Message:  fmt.Sprintf("The place of the channel %q on the server is taken by another namespace or program.", c.Name),
		Remedy:   "Choose another namespace in .mcp-config.json, or another name for the channel.",
		Err:      fmt.Errorf("stream %s has the subjects %q and the metadata %q", have.Name, have.Subjects, have.Metadata),
	}
}

// checkKind refuses a stream that would lose messages and cannot be changed: one
// that deletes what was read, one in memory, and one that takes nothing.
func (s *Space) checkKind(c Channel, have jetstream.StreamConfig) error {
	if have.Retention == jetstream.LimitsPolicy && have.Storage == jetstream.FileStorage && !have.Sealed && have.Mirror == nil {
		return nil
	}
	return &Error{
		Category: ConflictError,
		Message:  fmt.Sprintf("The channel %q is there on the server, but does not keep messages as a channel does.", c.Name),
		Remedy:   "Delete its stream, or choose another namespace in .mcp-config.json.",
		Err: fmt.Errorf("stream %s has retention %v, storage %v, sealed %t, a mirror %t", have.Name, have.Retention, have.Storage,
			have.Sealed, have.Mirror != nil),
	}
}

// current says whether a stream needs no change.
func current(have, want jetstream.StreamConfig) bool {
	return have.Description == want.Description && have.MaxMsgs == want.MaxMsgs && have.MaxBytes == want.MaxBytes &&
		have.MaxAge == want.MaxAge && have.Discard == want.Discard && have.AllowDirect && !have.NoAck &&
		have.Metadata[metaNamespace] == want.Metadata[metaNamespace]
}

// merge changes what we decide and leaves the rest, such as replicas and
// placement, as the operator of the server wants it.
func merge(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	have.Description, have.Discard, have.AllowDirect, have.NoAck = want.Description, want.Discard, true, false
	have.MaxMsgs, have.MaxBytes, have.MaxAge = want.MaxMsgs, want.MaxBytes, want.MaxAge
	if have.Duplicates > have.MaxAge {
		have.Duplicates = have.MaxAge
	}
	have.Metadata = maps.Clone(have.Metadata)
	if have.Metadata == nil {
		have.Metadata = map[string]string{}
	}
	maps.Copy(have.Metadata, want.Metadata)
	return have
}

// streamError says why a stream could not be made.
func streamError(b *bus.Bus, c Channel, err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return unanswered(b, err)
	}
	switch api.ErrorCode {
	case errSubjectOverlap:
		return &Error{Category: ConflictError, Message: fmt.Sprintf("The subject of the channel %q belongs to another stream of the server.", c.Name),
			Remedy: "Choose another namespace in .mcp-config.json.", Err: err}
	case errStorageExceeded, errMaxBytesRequired:
		return &Error{Category: ConnectionError, Message: fmt.Sprintf("The server has no room for the channel %q.", c.Name),
			Remedy: "Lower maxBytes of the channels, or give the server more storage.", Err: err}
	}
	return unanswered(b, err)
}

// Codes of JetStream's API that the client library does not name.
const (
	errStorageExceeded  jetstream.ErrorCode = 10047
	errMessageTooLarge  jetstream.ErrorCode = 10054
	errStreamMismatch   jetstream.ErrorCode = 10060
	errSubjectOverlap   jetstream.ErrorCode = 10065
	errMaxBytesRequired jetstream.ErrorCode = 10113
)
