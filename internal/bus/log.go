package bus

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/parleyhub/parley/internal/base/text"
)

// serverLogger is the embedded server's logger. It logs the server's notices as debug messages:
// they are details of a part of the hub.
type serverLogger struct {
	log     *slog.Logger
	secrets []string
	// isLink, unless it is nil, is called with every warning and error, and reports whether it
	// is about the link to a cluster: the link logs each problem once.
	isLink func(text string) bool
	fatal  atomic.Pointer[string] // the error that kept the server from starting
	write  atomic.Pointer[string] // the error that keeps a stream from storing messages
	unread atomic.Pointer[string] // the last warning of something that could not be opened for want of descriptors
}

func (l *serverLogger) text(format string, v []any) string {
	return text.Redact(fmt.Sprintf(format, v...), l.secrets...)
}

func (l *serverLogger) Noticef(format string, v ...any) { l.log.Debug(l.text(format, v)) }
func (l *serverLogger) Debugf(format string, v ...any)  { l.log.Debug(l.text(format, v)) }
func (l *serverLogger) Tracef(format string, v ...any)  { l.log.Debug(l.text(format, v)) }

// Warnf keeps the text of what the server leaves out: it says it nowhere else.
func (l *serverLogger) Warnf(format string, v ...any) {
	s := l.text(format, v)
	if isUnread(s) {
		l.unread.Store(&s)
	}
	l.logText(slog.LevelWarn, s)
}

// Errorf keeps the text of a critical write error: after it the stream accepts no publish until
// the server restarts, even if the disk has space again, and only the log reports it.
func (l *serverLogger) Errorf(format string, v ...any) {
	s := l.text(format, v)
	if strings.Contains(strings.ToLower(s), "critical write error") {
		l.write.CompareAndSwap(nil, &s)
	}
	l.logText(slog.LevelError, s)
}

func (l *serverLogger) logText(level slog.Level, text string) {
	if l.isLink != nil && l.isLink(text) {
		level = slog.LevelDebug
	}
	l.log.Log(context.Background(), level, text)
}

// Fatalf keeps the text for the error of startServer. It does not end the process.
func (l *serverLogger) Fatalf(format string, v ...any) {
	s := l.text(format, v)
	l.fatal.CompareAndSwap(nil, &s)
}
