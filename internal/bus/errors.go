package bus

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/fault"
	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
)

// Code is the kind of an [Error].
type Code string

// The codes of an [Error]. The first four are the kinds of connection failures.
const (
	CodeNotRunning  Code = "not-running"  // nothing listens there, no hub runs, or the connection is lost
	CodeNoJetStream Code = "no-jetstream" // the server or the account is without JetStream, or it does not answer
	CodeNetwork     Code = "network"      // name, route, TLS, or something that is not NATS
	CodeAuth        Code = "auth"         // credentials missing, refused or insufficient
	CodeConfig      Code = "config"       // the configuration is wrong
	CodeLocked      Code = "locked"       // another hub has the data directory
	CodeStorage     Code = "storage"      // the disk or the store failed or is full
	CodeRejected    Code = "rejected"     // the server refused the request; Err says why
	CodeTimeout     Code = "timeout"      // the caller's context ended, or no answer
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

// errorf returns an Error with a formatted message; cause and remedy may be empty.
func errorf(code Code, cause error, remedy, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Remedy: remedy, Err: cause}
}

const checkDisk = "check the disk's health and free space, then restart the hub"

// insecure returns the error for a file that cannot be trusted.
func insecure(path, why string) error {
	return errorf(CodeConfig, nil, "remove it, or restart the hub as the user who owns it",
		"%s %s", path, why)
}

// fileError returns the error for an unusable file of the configuration.
func fileError(what, path string, err error) error {
	return errorf(CodeConfig, err, "correct the path or the file",
		"cannot use %s %s: %v", what, path, err)
}

// contextError returns the error for a wait that the context ended.
func contextError(err error, doing string) error {
	return &Error{Code: CodeTimeout, Message: "gave up " + doing, Err: err}
}

// asError returns the *Error in err, nil if there is none.
func asError(err error) *Error {
	e, _ := errors.AsType[*Error](err)
	return e
}

// connectError classifies the failure of a connection to where.
func connectError(err error, where string, secrets []string) *Error {
	if e := asError(err); e != nil {
		return e
	}
	cause := redactErr(err, secrets)
	switch {
	case isAuthError(err):
		return errorf(CodeAuth, cause, "check user and password, token, NKey or credentials file",
			"%s refused the credentials (%s)", where, cause)
	case wantsCertificate(err):
		return errorf(CodeAuth, cause, "configure a certificate and key that the server's CA signed",
			"%s did not accept the client certificate, or requires one (%s)", where, cause)
	case isRefused(err):
		return errorf(CodeNotRunning, cause, "start it (nats-server -js) or correct the URL",
			"no NATS server is running at %s", where)
	}
	reason, remedy, lasting := networkReason(err)
	e := errorf(CodeNetwork, cause, remedy, "cannot reach %s: %s (%s)", where, reason, cause)
	if lasting {
		e.Err = lastingError{cause}
	}
	return e
}

// lastingError marks the cause of a network error that only a change of the configuration, or of the server, ends.
type lastingError struct{ error }

func (e lastingError) Unwrap() error { return e.error }

// IsOutage reports whether an error is an outage: the server or the way to it is down or too slow for now, and the same
// request may succeed later although nobody changes a configuration. All else that the package returns, such as refused
// credentials or a server without JetStream, is none.
func IsOutage(err error) bool {
	e := asError(err)
	if e == nil {
		return isAny(err, nats.ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrConnectionReconnecting, nats.ErrNoResponders,
			context.DeadlineExceeded, nats.ErrTimeout)
	}
	switch e.Code {
	case CodeNotRunning, CodeTimeout:
		return true
	case CodeNetwork:
		_, lasting := errors.AsType[lastingError](e.Err)
		return !lasting
	case CodeNoJetStream:
		return !isAny(e.Err, jetstream.ErrJetStreamNotEnabled, jetstream.ErrJetStreamNotEnabledForAccount)
	}
	return false
}

// networkReason describes a network error and its remedy, and reports whether it lasts until somebody changes something.
func networkReason(err error) (reason, remedy string, lasting bool) {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		timeout   net.Error
	)
	switch {
	case errors.As(err, &dns):
		return "the host name cannot be resolved", "check the URL's host and the DNS", dns.IsNotFound
	case errors.As(err, &authority):
		return "its certificate is signed by an unknown authority", "configure the CA file of the server", true
	case errors.As(err, &hostname):
		return "its certificate is for another name", "use the name in the certificate, or configure the server name", true
	case errors.As(err, &invalid):
		return "its certificate is not valid", "renew the certificate, or check the clock", true
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "it has no TLS", "use nats:// and no TLS files, or enable TLS in the server", true
	case errors.Is(err, nats.ErrTLS), errors.Is(err, nats.ErrSecureConnRequired):
		return "the TLS handshake failed", "check the TLS settings on both sides", true
	case errors.Is(err, nats.ErrNoInfoReceived):
		return "it is not a NATS server", "check the URL's port", true
	case errors.Is(err, io.EOF):
		return "it closed the connection", "check that the port is NATS's client port", false
	case errors.Is(err, nats.ErrTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return "it does not answer", "check the URL's host and port, and firewalls on the way", false
	}
	return "the network failed", "check the URL, the network and firewalls", false
}

// isAny reports whether err is one of targets.
func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

func isAuthError(err error) bool {
	return isAny(err, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrNkeysNotSupported)
}

// wantsCertificate recognizes the alerts of a server that verifies clients, for which package
// tls has no type. In TLS 1.3 the client's handshake ends before the server has verified the
// certificate, so the connection may be closed without an alert.
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

// jetStreamError classifies the failure of JetStream at a server that answers.
func jetStreamError(err error, where string) error {
	e := &Error{Code: CodeNoJetStream, Err: err, Remedy: "check the server's log; a cluster needs a majority of its nodes"}
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		e.Code = CodeAuth
		e.Message = fmt.Sprintf("%s does not permit this user to use JetStream", where)
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
	default:
		e.Message = fmt.Sprintf("JetStream at %s is not available: %v", where, err)
	}
	return e
}

// requestError classifies the failure of a request over an established connection. errors.Is and
// errors.As find the cause.
func requestError(err error, doing string) error {
	if e := asError(err); e != nil {
		return e
	}
	e := &Error{Code: CodeRejected, Message: fmt.Sprintf("cannot %s: %v", doing, err), Err: err}
	var api *jetstream.APIError
	switch {
	case isAny(err, nats.ErrReconnectBufExceeded, nats.ErrDisconnected, nats.ErrConnectionReconnecting):
		e.Code = CodeNotRunning
		e.Message = fmt.Sprintf("cannot %s: the connection to the bus is lost", doing)
		e.Remedy = "it reconnects automatically; see the bus in " + local.Program() + " doctor"
	case isAny(err, nats.ErrConnectionClosed, nats.ErrConnectionDraining, jetstream.ErrJetStreamPublisherClosed):
		e.Code = CodeClosed
		e.Message = fmt.Sprintf("cannot %s: the bus is closed", doing)
	case isAny(err, context.Canceled, context.DeadlineExceeded, nats.ErrTimeout, jetstream.ErrAsyncPublishTimeout,
		jetstream.ErrTooManyStalledMsgs):
		e.Code = CodeTimeout
		e.Message = fmt.Sprintf("cannot %s: no answer in time", doing)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		e.Code = CodeNoJetStream
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		e.Message = fmt.Sprintf("cannot %s: no stream has its subject", doing)
	case errors.As(err, &api) && isStorageCode(api.ErrorCode):
		e.Code = CodeStorage
		e.Remedy = "free space: remove streams or old messages, or raise the store's limit"
	}
	return e
}

// isStorageCode reports whether a JetStream error means that the store is full.
func isStorageCode(c jetstream.ErrorCode) bool {
	const (
		insufficientResources    = 10023
		storageResourcesExceeded = 10047
		streamStoreFailed        = 10077
	)
	return c == insufficientResources || c == storageResourcesExceeded || c == streamStoreFailed
}

// redactErr removes secrets from an error's text; errors.Is still works.
func redactErr(err error, secrets []string) error {
	if err == nil {
		return nil
	}
	if shown := text.Redact(err.Error(), secrets...); shown != err.Error() {
		return &redactedError{text: shown, err: err}
	}
	return err
}

// redactedError supports errors.Is for the original error, but cannot be unwrapped to the text with the secret.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string        { return e.text }
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
