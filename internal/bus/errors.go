package bus

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/fault"
)

// Code says what kind of thing went wrong with the bus.
type Code string

// The codes of an [Error]. The first four are the ways in which a connection
// fails.
const (
	CodeNotRunning  Code = "not-running"  // nothing listens there, no hub runs, or the connection is lost
	CodeNoJetStream Code = "no-jetstream" // the server or the account is without JetStream, or it does not answer
	CodeNetwork     Code = "network"      // name, route, TLS, or something that is not NATS
	CodeAuth        Code = "auth"         // credentials missing or refused, or not allowed to do this
	CodeConfig      Code = "config"       // the configuration is wrong
	CodeLocked      Code = "locked"       // another hub has the data directory
	CodeStorage     Code = "storage"      // the disk or the store refuses
	CodeRejected    Code = "rejected"     // the server refused the request; Err says why
	CodeTimeout     Code = "timeout"      // the caller's limit, or no answer
	CodeClosed      Code = "closed"       // the Bus is closed
	CodeLimit       Code = "limit"        // too many processes or namespaces
	CodeUnsupported Code = "unsupported"  // this kind of Bus cannot do it
)

// Error is what the package returns. Message and Remedy are fit for users and
// hold no secrets; Err is the cause, for logs and errors.Is.
type Error = fault.UserError[Code]

// CodeOf returns the code of an error, "" if it has none.
func CodeOf(err error) Code { return fault.CodeOf[Code](err) }

var errClosed = &Error{Code: CodeClosed, Message: "the bus is closed"}

// insecure says that a file cannot be trusted.
func insecure(path, why string) error {
	return &Error{
		Code:    CodeConfig,
		Message: fmt.Sprintf("%s %s", path, why),
		Remedy:  "remove it, or restart the hub as the user who owns it",
	}
}

// fileError says that a file of the configuration is of no use.
func fileError(what, path string, err error) error {
	return &Error{
		Code:    CodeConfig,
		Message: fmt.Sprintf("cannot use %s %s: %v", what, path, err),
		Remedy:  "correct the path or the file",
		Err:     err,
	}
}

// contextError says what the caller stopped waiting for.
func contextError(err error, doing string) error {
	return &Error{Code: CodeTimeout, Message: "gave up " + doing, Err: err}
}

// asError returns err's *Error, nil if it has none.
func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// connectError tells the ways apart in which a connection to where fails.
func connectError(err error, where string, secrets []string) *Error {
	if e := asError(err); e != nil {
		return e
	}
	cause := redactErr(err, secrets)
	switch {
	case isAuthError(err):
		return &Error{
			Code:    CodeAuth,
			Message: fmt.Sprintf("%s refused the credentials (%s)", where, cause),
			Remedy:  "check user and password, token, NKey or credentials file",
			Err:     cause,
		}
	case wantsCertificate(err):
		return &Error{
			Code:    CodeAuth,
			Message: fmt.Sprintf("%s did not accept the client certificate, or wants one (%s)", where, cause),
			Remedy:  "configure a certificate and key that the server's CA signed",
			Err:     cause,
		}
	case isRefused(err):
		return &Error{
			Code:    CodeNotRunning,
			Message: fmt.Sprintf("no NATS server is running at %s", where),
			Remedy:  "start it (nats-server -js) or correct the URL",
			Err:     cause,
		}
	}
	reason, remedy := networkReason(err)
	return &Error{
		Code:    CodeNetwork,
		Message: fmt.Sprintf("cannot reach %s: %s (%s)", where, reason, cause),
		Remedy:  remedy,
		Err:     cause,
	}
}

// networkReason says what is the matter with the network, and what to do.
func networkReason(err error) (reason, remedy string) {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		timeout   net.Error
	)
	switch {
	case errors.As(err, &dns):
		return "the host name cannot be resolved", "check the URL's host and the DNS"
	case errors.As(err, &authority):
		return "its certificate is signed by an unknown authority", "configure the CA file of the server"
	case errors.As(err, &hostname):
		return "its certificate is for another name", "use the name in the certificate, or configure the server name"
	case errors.As(err, &invalid):
		return "its certificate is not valid", "renew the certificate, or check the clock"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "it has no TLS", "use nats:// and no TLS files, or enable TLS in the server"
	case errors.Is(err, nats.ErrTLS), errors.Is(err, nats.ErrSecureConnRequired):
		return "the TLS handshake failed", "check the TLS settings on both sides"
	case errors.Is(err, nats.ErrNoInfoReceived):
		return "what answers there is not a NATS server", "check the URL's port"
	case errors.Is(err, io.EOF):
		return "it closed the connection", "check that the port is NATS's client port"
	case errors.Is(err, nats.ErrTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer", "check the URL's host and port, and firewalls on the way"
	}
	return "the network failed", "check the URL, the network and firewalls"
}

func isAuthError(err error) bool {
	for _, target := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked,
		nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// wantsCertificate finds the alerts of a server that verifies clients, for
// which package tls has no type. In TLS 1.3 the client's handshake is over
// before the server has seen its certificate, so the alert may come too late
// and the connection is just closed.
func wantsCertificate(err error) bool {
	s := err.Error()
	return strings.Contains(s, "tls: certificate required") ||
		strings.Contains(s, "tls: bad certificate") ||
		strings.Contains(s, "tls: unknown certificate authority") ||
		errors.Is(err, nats.ErrTLS) && strings.Contains(s, "closed by remote after TLS handshake")
}

func isRefused(err error) bool {
	const wsaeConnRefused = syscall.Errno(10061)
	return errors.Is(err, nats.ErrNoServers) || errors.Is(err, syscall.ECONNREFUSED) ||
		runtime.GOOS == "windows" && errors.Is(err, wsaeConnRefused)
}

// jetStreamError says why a server that answers is of no use.
func jetStreamError(err error, where string) error {
	e := &Error{Code: CodeNoJetStream, Err: err}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		e.Code = CodeAuth
		e.Message = fmt.Sprintf("%s does not let this user ask for JetStream", where)
		e.Remedy = "allow the user to publish to $JS.API.INFO and to subscribe to _INBOX.>"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		e.Message = fmt.Sprintf("the NATS server at %s runs without JetStream", where)
		e.Remedy = "start it with -js, or with a jetstream block in its configuration"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		e.Message = fmt.Sprintf("JetStream is not enabled for this account at %s", where)
		e.Remedy = "enable it in the account's configuration or JWT"
	case errors.Is(err, context.Canceled):
		return contextError(err, "waiting for JetStream")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		e.Message = fmt.Sprintf("JetStream at %s does not answer", where)
		e.Remedy = "check the server's log; a cluster needs a majority of its nodes"
	default:
		e.Message = fmt.Sprintf("JetStream at %s is not available: %v", where, err)
		e.Remedy = "check the server's log; a cluster needs a majority of its nodes"
	}
	return e
}

// requestError says why something could not be done over a connection that
// stood. The cause stays reachable for errors.Is and errors.As.
func requestError(err error, doing string) error {
	if e := asError(err); e != nil {
		return e
	}
	e := &Error{Code: CodeRejected, Message: fmt.Sprintf("cannot %s: %v", doing, err), Err: err}
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, nats.ErrConnectionReconnecting):
		e.Code = CodeNotRunning
		e.Message = fmt.Sprintf("cannot %s: the connection to the bus is lost", doing)
		e.Remedy = "it is tried again all the time; see the bus in parley doctor"
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining),
		errors.Is(err, jetstream.ErrJetStreamPublisherClosed):
		e.Code = CodeClosed
		e.Message = fmt.Sprintf("cannot %s: the bus is closed", doing)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrAsyncPublishTimeout),
		errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		e.Code = CodeTimeout
		e.Message = fmt.Sprintf("cannot %s: no answer in time", doing)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		e.Code = CodeNoJetStream
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		e.Message = fmt.Sprintf("cannot %s: no stream takes its subject", doing)
	case errors.As(err, &api) && isStorageCode(api.ErrorCode):
		e.Code = CodeStorage
		e.Remedy = "free space: remove streams or old messages, or raise the store's limit"
	}
	return e
}

// isStorageCode tells the JetStream errors that come of a full store.
func isStorageCode(c jetstream.ErrorCode) bool {
	const (
		insufficientResources    = 10023
		storageResourcesExceeded = 10047
		streamStoreFailed        = 10077
	)
	return c == insufficientResources || c == storageResourcesExceeded || c == streamStoreFailed
}

// redactErr hides secrets in an error's text without losing its identity.
func redactErr(err error, secrets []string) error {
	if err == nil {
		return nil
	}
	if text := redact(err.Error(), secrets...); text != err.Error() {
		return &redactedError{text: text, err: err}
	}
	return err
}

// A redactedError is for errors.Is what it was, but can not be unwrapped to the
// text with the secret.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
