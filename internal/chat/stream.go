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

// Keys of a stream's metadata. The stream's name alone does not identify its owner: the namespaces and channels
// "a_b", "c" and "a", "b_c" have the same one.
const (
	metaNamespace = "parley.namespace"
	metaChannel   = "parley.channel"
)

// subject returns the subject of a channel's messages.
func (s *Space) subject(channel string) string { return s.cfg.Namespace + "." + channel }

// streamName returns the name of a channel's stream.
func (s *Space) streamName(channel string) string {
	return s.cfg.Namespace + "_" + strings.ToUpper(strings.ReplaceAll(channel, "-", "_"))
}

// ensureAll ensures the streams of all channels. The first use of a channel retries a failure.
func (s *Space) ensureAll(ctx context.Context) {
	for _, c := range s.cfg.Channels {
		b, err := s.connected()
		if err == nil {
			err = s.ensure(ctx, b, c)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("a channel is not ready", "channel", c.Name, "error", err)
		}
	}
}

// ensure creates the stream of a channel, or updates it to the configuration, within requestTimeout. The result is
// cached until the next reconnect.
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
		if upToDate(have, want) {
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

// streamConfig returns the configuration of a channel's stream.
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

// checkOwner returns a ConflictError if the stream belongs to another namespace or program. A stream without metadata
// that has exactly our subject is accepted: another implementation of the specification created it.
func (s *Space) checkOwner(c Channel, have jetstream.StreamConfig) error {
	namespace, channel := have.Metadata[metaNamespace], have.Metadata[metaChannel]
	ours := namespace == s.cfg.Namespace && channel == c.Name
	unmarked := namespace == "" && channel == "" && slices.Equal(have.Subjects, []string{s.subject(c.Name)})
	if ours || unmarked {
		return s.checkKind(c, have)
	}
	return &Error{
		Code:    ConflictError,
		Message: fmt.Sprintf("The stream of the channel %q belongs to another namespace or program.", c.Name),
		Remedy:  "Choose another namespace in .mcp-config.json, or another name for the channel.",
		Err:     fmt.Errorf("stream %s has the subjects %q and the metadata %q", have.Name, have.Subjects, have.Metadata),
	}
}

// checkKind returns a ConflictError for a stream whose settings would lose messages and cannot be updated: one that
// deletes read messages, is in memory, is sealed or is a mirror.
func (s *Space) checkKind(c Channel, have jetstream.StreamConfig) error {
	if have.Retention == jetstream.LimitsPolicy && have.Storage == jetstream.FileStorage && !have.Sealed && have.Mirror == nil {
		return nil
	}
	return &Error{
		Code:    ConflictError,
		Message: fmt.Sprintf("The stream of the channel %q exists, but does not retain messages as a channel does.", c.Name),
		Remedy:  "Delete its stream, or choose another namespace in .mcp-config.json.",
		Err: fmt.Errorf("stream %s has retention %v, storage %v, sealed %t, a mirror %t", have.Name, have.Retention, have.Storage,
			have.Sealed, have.Mirror != nil),
	}
}

// upToDate reports whether a stream needs no update.
func upToDate(have, want jetstream.StreamConfig) bool {
	return have.Description == want.Description && have.MaxMsgs == want.MaxMsgs && have.MaxBytes == want.MaxBytes &&
		have.MaxAge == want.MaxAge && have.Discard == want.Discard && have.AllowDirect && !have.NoAck &&
		have.Metadata[metaNamespace] == want.Metadata[metaNamespace]
}

// merge applies our settings to a stream and keeps those of the server's operator, such as replicas and placement.
func merge(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	have.Description, have.Discard, have.AllowDirect, have.NoAck = want.Description, want.Discard, true, false
	have.MaxMsgs, have.MaxBytes, have.MaxAge = want.MaxMsgs, want.MaxBytes, want.MaxAge
	have.Duplicates = min(have.Duplicates, have.MaxAge)
	metadata := map[string]string{}
	maps.Copy(metadata, have.Metadata)
	maps.Copy(metadata, want.Metadata)
	have.Metadata = metadata
	return have
}

// streamError converts the error of a stream that could not be created or updated.
func streamError(b *bus.Bus, c Channel, err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return unanswered(b, err)
	}
	switch api.ErrorCode {
	case errSubjectOverlap:
		return &Error{Code: ConflictError, Message: fmt.Sprintf("The subject of the channel %q belongs to another stream of the server.", c.Name),
			Remedy: "Choose another namespace in .mcp-config.json.", Err: err}
	case errStorageExceeded, errMaxBytesRequired:
		return &Error{Code: ConnectionError, Message: fmt.Sprintf("The server has too little storage for the channel %q.", c.Name),
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
