package bus

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
)

// userinfo matches the credentials in a URL.
var userinfo = regexp.MustCompile(`(://)[^/@\s]+@`)

// redact blanks the credentials of every URL in s, and the given secrets.
func redact(s string, secrets ...string) string {
	s = userinfo.ReplaceAllString(s, "${1}[redacted]@")
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[redacted]")
		}
	}
	return s
}

// serverLogger is the embedded server's logger. The server's notices are
// details of a part to whoever reads the hub's log, so they are debug messages.
type serverLogger struct {
	log     *slog.Logger
	secrets []string
	// hear, if it is set, is told every line of note, and says whether it was about a
	// link to a cluster: its owner logs what is the matter with that, once.
	hear  func(text string) bool
	fatal atomic.Pointer[string] // why the server could not start
	write atomic.Pointer[string] // why a stream takes nothing more
}

func (l *serverLogger) text(format string, v []any) string {
	return redact(fmt.Sprintf(format, v...), l.secrets...)
}

func (l *serverLogger) Noticef(format string, v ...any) { l.log.Debug(l.text(format, v)) }
func (l *serverLogger) Warnf(format string, v ...any)   { l.say(slog.LevelWarn, l.text(format, v)) }
func (l *serverLogger) Debugf(format string, v ...any)  { l.log.Debug(l.text(format, v)) }
func (l *serverLogger) Tracef(format string, v ...any)  { l.log.Debug(l.text(format, v)) }

// Errorf keeps the text of the one error that changes what the server does: after it
// the stream answers no publish until the server starts anew, even if the disk has room
// again, and nothing but the log tells.
func (l *serverLogger) Errorf(format string, v ...any) {
	s := l.text(format, v)
	if strings.Contains(format, "critical write error") {
		l.write.CompareAndSwap(nil, &s)
	}
	l.say(slog.LevelError, s)
}

func (l *serverLogger) say(level slog.Level, text string) {
	if l.hear != nil && l.hear(text) {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, text)
}

// Fatalf keeps the text for the error that the start returns: a library does
// not end the process.
func (l *serverLogger) Fatalf(format string, v ...any) {
	s := l.text(format, v)
	l.fatal.CompareAndSwap(nil, &s)
}
