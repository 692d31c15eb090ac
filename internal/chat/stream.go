package chat

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/text"
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

// channelOf returns the name of the channel whose subject it is; ok is false for other subjects.
func (s *Space) channelOf(subject string) (name string, ok bool) {
	name, _ = strings.CutPrefix(subject, s.cfg.Namespace+".")
	_, ok = s.byName[name]
	return name, ok
}

// notificationSubject has the messages of all channels of the namespace.
func (s *Space) notificationSubject() string { return s.cfg.Namespace + ".*" }

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
	if s.isEnsured(c.Name) {
		return nil
	}
	ctx, cancel := s.request(ctx, b, c)
	defer cancel()
	want := s.streamConfig(c)
	stream, err := b.JetStream().Stream(ctx, want.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		err = s.create(ctx, b, want)
	case err != nil:
		return s.unanswered(ctx, b, c, err)
	default:
		have := stream.CachedInfo().Config
		if err := s.checkOwner(c, have); err != nil {
			return err
		}
		if s.upToDate(have, want) {
			s.setEnsured(c.Name, true)
			return nil
		}
		want = merge(have, want)
		if s.cfg.Replicas > 0 {
			want.Replicas = s.cfg.Replicas
		}
		_, err = b.EnsureStream(ctx, want)
	}
	if err != nil {
		return s.streamError(ctx, b, c, err)
	}
	s.log.Debug("stream ready", "stream", want.Name, "subject", s.subject(c.Name))
	s.setEnsured(c.Name, true)
	return nil
}

// isEnsured reports whether ensure has found or created a channel's stream since the last reconnect.
func (s *Space) isEnsured(channel string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ensured[channel]
}

func (s *Space) setEnsured(channel string, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ensured[channel] = ready
	if ready {
		delete(s.ailing, channel)
	}
}

// heal is the opposite of ail.
func (s *Space) heal(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ailing, channel)
}

// create creates a stream with the configured copies. Where none are configured, a cluster of too few nodes gets one.
func (s *Space) create(ctx context.Context, b *bus.Bus, want jetstream.StreamConfig) error {
	want.Replicas = s.cfg.Replicas
	if want.Replicas == 0 {
		want.Replicas = 1
		if s.clustered.Load() {
			want.Replicas = clusterReplicas
		}
	}
	_, err := b.EnsureStream(ctx, want)
	if api, ok := errors.AsType[*jetstream.APIError](err); ok && s.cfg.Replicas == 0 && want.Replicas > 1 &&
		(api.ErrorCode == errNoPeers || api.ErrorCode == errReplicasNotSupported) {
		s.log.Warn("the cluster has too few nodes for three copies of a channel", "stream", want.Name, "error", err)
		want.Replicas = 1
		_, err = b.EnsureStream(ctx, want)
	}
	return err
}

// clusterReplicas are the copies of a stream in a cluster unless another number is configured.
const clusterReplicas = 3

// request is untilDenied for one request: the context ends after requestTimeout.
func (s *Space) request(ctx context.Context, b *bus.Bus, c Channel) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	ctx, release := s.untilDenied(ctx, b, c)
	return ctx, func() { release(); cancel() }
}

// untilDenied returns a context that ends as soon as the server refuses the permission for the channel's subject or its
// stream, instead of which a request would get no answer.
func (s *Space) untilDenied(ctx context.Context, b *bus.Bus, c Channel) (context.Context, context.CancelFunc) {
	subject, stream := s.subject(c.Name), s.streamName(c.Name)
	return b.UntilDenied(ctx, func(denied string) bool {
		return denied == subject || slices.Contains(strings.Split(denied, "."), stream)
	})
}

// ailingFor is how long a channel whose stream did not answer is left out of the requests for several channels.
const ailingFor = 5 * time.Second

// ail records that a channel's stream did not answer.
func (s *Space) ail(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ailing[channel] = time.Now()
}

// ails returns when a channel's stream did not answer, and whether it is so recent that it should not be asked again.
func (s *Space) ails(channel string) (since time.Time, recent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since = s.ailing[channel]
	return since, !since.IsZero() && time.Since(since) < ailingFor
}

// ailingError is the error of a channel of ails.
func (s *Space) ailingError(c Channel) error {
	return &Error{Code: ConnectionError, Err: context.DeadlineExceeded,
		Message: fmt.Sprintf("The stream %s of the channel %q does not answer.", s.streamName(c.Name), c.Name),
		Remedy:  "Try again in a moment; other channels can be used meanwhile."}
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
// that has exactly our subject, such as that of another implementation of the specification, is used as it is if it keeps
// what the channel keeps. Others would have to be changed, which could delete messages: that needs the mark of the
// server's operator.
func (s *Space) checkOwner(c Channel, have jetstream.StreamConfig) error {
	namespace, channel := have.Metadata[metaNamespace], have.Metadata[metaChannel]
	if namespace == s.cfg.Namespace && channel == c.Name {
		return s.checkKind(c, have)
	}
	if unmarked(have) && slices.Equal(have.Subjects, []string{s.subject(c.Name)}) {
		if err := s.checkKind(c, have); err != nil || sameLimits(have, s.streamConfig(c)) {
			return err
		}
		return &Error{
			Code: ConflictError,
			Message: fmt.Sprintf("The stream %s of the channel %q was made by another program and keeps something else than the channel: %s.",
				have.Name, c.Name, limitsOf(have)),
			Remedy: fmt.Sprintf("Set these limits for the channel in .mcp-config.json, or choose another namespace. To let the stream be changed "+
				"to the channel's limits, which may delete messages: nats stream edit %s --metadata=%s=%s --metadata=%s=%s",
				have.Name, metaNamespace, s.cfg.Namespace, metaChannel, c.Name),
		}
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

func unmarked(have jetstream.StreamConfig) bool {
	return have.Metadata[metaNamespace] == "" && have.Metadata[metaChannel] == ""
}

// sameLimits reports whether two streams keep the same messages.
func sameLimits(have, want jetstream.StreamConfig) bool {
	return have.MaxMsgs == want.MaxMsgs && have.MaxBytes == want.MaxBytes && have.MaxAge == want.MaxAge &&
		have.Discard == want.Discard && have.MaxMsgsPerSubject <= 0 && !have.NoAck
}

// limitsOf describes the limits of a stream with the keys of a channel's configuration.
func limitsOf(have jetstream.StreamConfig) string {
	limits := []string{"maxMessages no limit", "maxBytes no limit", "maxAge no limit"}
	if have.MaxMsgs > 0 {
		limits[0] = fmt.Sprint("maxMessages ", have.MaxMsgs)
	}
	if have.MaxBytes > 0 {
		limits[1] = fmt.Sprint("maxBytes ", have.MaxBytes)
	}
	if have.MaxAge > 0 {
		limits[2] = fmt.Sprint("maxAge ", have.MaxAge)
	}
	if have.Discard != jetstream.DiscardOld {
		limits = append(limits, "when full it refuses new messages")
	}
	if have.MaxMsgsPerSubject > 0 {
		limits = append(limits, fmt.Sprint("messages per subject ", have.MaxMsgsPerSubject))
	}
	if have.NoAck {
		limits = append(limits, "it acknowledges nothing")
	}
	return strings.Join(limits, ", ")
}

// upToDate reports whether a stream needs no update. That of another program, which checkOwner accepted, gets none.
func (s *Space) upToDate(have, want jetstream.StreamConfig) bool {
	return unmarked(have) || have.Description == want.Description && sameLimits(have, want) && have.AllowDirect &&
		(s.cfg.Replicas == 0 || s.cfg.Replicas == have.Replicas)
}

// merge applies our settings to a stream and keeps those of the server's operator, such as placement.
func merge(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	have.Description, have.Discard, have.AllowDirect, have.NoAck = want.Description, want.Discard, true, false
	have.MaxMsgs, have.MaxBytes, have.MaxAge, have.MaxMsgsPerSubject = want.MaxMsgs, want.MaxBytes, want.MaxAge, -1
	have.Duplicates = min(have.Duplicates, have.MaxAge)
	metadata := map[string]string{}
	maps.Copy(metadata, have.Metadata)
	maps.Copy(metadata, want.Metadata)
	have.Metadata = metadata
	return have
}

// streamError converts the error of a stream that could not be created or updated.
func (s *Space) streamError(ctx context.Context, b *bus.Bus, c Channel, err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return s.unanswered(ctx, b, c, err)
	}
	switch api.ErrorCode {
	case errSubjectOverlap:
		return s.taken(ctx, b, c, err)
	case errNoPeers, errReplicasNotSupported:
		return &Error{Code: ConnectionError, Err: err,
			Message: fmt.Sprintf("The server at %s cannot keep %d copies of the channel %q: %s", b.Info().URL, s.cfg.Replicas, c.Name, text.Sentence(api.Description)),
			Remedy:  "Lower crossComputer.replicas to the number of the cluster's nodes that store data (0: the default), or add nodes."}
	case errStorageExceeded, errMaxBytesRequired:
		return &Error{Code: ConnectionError, Message: fmt.Sprintf("The server has too little storage for the channel %q.", c.Name),
			Remedy: "Lower maxBytes of the channels, or give the server more storage.", Err: err}
	}
	return s.unanswered(ctx, b, c, err)
}

// taken returns the error of a channel whose subject a stream of another name has.
func (s *Space) taken(ctx context.Context, b *bus.Bus, c Channel, err error) *Error {
	whose := "another stream of the server"
	if name, _ := b.JetStream().StreamNameBySubject(ctx, s.subject(c.Name)); name != "" { // it only completes the message
		whose = "the stream " + name + " of another program"
	}
	return &Error{Code: ConflictError, Message: fmt.Sprintf("The subject %s of the channel %q belongs to %s.", s.subject(c.Name), c.Name, whose),
		Remedy: "Choose another namespace in .mcp-config.json, or another name for the channel.", Err: err}
}

// Codes of JetStream's API that the client library does not name.
const (
	errNoPeers              jetstream.ErrorCode = 10005
	errClusterNotAvailable  jetstream.ErrorCode = 10008
	errClusterNotLeader     jetstream.ErrorCode = 10009
	errStorageExceeded      jetstream.ErrorCode = 10047
	errMessageTooLarge      jetstream.ErrorCode = 10054
	errStreamMismatch       jetstream.ErrorCode = 10060
	errSubjectOverlap       jetstream.ErrorCode = 10065
	errReplicasNotSupported jetstream.ErrorCode = 10074
	errMaxBytesRequired     jetstream.ErrorCode = 10113
	errStreamOffline        jetstream.ErrorCode = 10118
)

// streamOutages are the codes of a stream, or of a cluster, that has no leader for now.
var streamOutages = []jetstream.ErrorCode{errClusterNotAvailable, errClusterNotLeader, errStreamOffline}
