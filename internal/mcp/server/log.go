package server

import (
	"context"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/parleyhub/parley/internal/base/text"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// NewLogger returns the logger of the MCP server, which writes a JSON object or a line of text for each record to w. A
// record has timestamp, level, component and message; with an error value at level ERROR also a stack trace. The secrets,
// and credentials in URLs, are redacted everywhere.
func NewLogger(w io.Writer, cfg mcpconfig.Logging, secrets ...string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: cfg.SlogLevel(), ReplaceAttr: redactor(secrets).replace}
	var h slog.Handler = slog.NewJSONHandler(w, opts)
	if cfg.Format == "text" {
		h = slog.NewTextHandler(w, opts)
	}
	return slog.New(&handler{next: h, component: defaultComponent})
}

const defaultComponent = "nats-mcp-server"

// handler adds the component and stack traces to records.
type handler struct {
	next      slog.Handler
	component string
	shift     slog.Level // subtracted from every level
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level-h.shift)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	r.Level -= h.shift
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	full := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	full.AddAttrs(slog.String("component", h.component))
	exception := false
	r.Attrs(func(a slog.Attr) bool {
		_, isError := a.Value.Any().(error)
		exception = exception || isError
		full.AddAttrs(a)
		return true
	})
	if r.Level >= slog.LevelError && exception {
		full.AddAttrs(slog.String("stack", string(debug.Stack())))
	}
	return h.next.Handle(ctx, full)
}

// WithAttrs handles the component separately, so that a record has only one.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	var rest []slog.Attr
	for _, a := range attrs {
		if a.Key == "component" {
			n.component = a.Value.String()
		} else {
			rest = append(rest, a)
		}
	}
	if len(rest) > 0 {
		n.next = h.next.WithAttrs(rest)
	}
	return &n
}

func (h *handler) WithGroup(name string) slog.Handler {
	n := *h
	n.next = h.next.WithGroup(name)
	return &n
}

// quieter returns a logger for the SDK that lowers each level by one: the SDK logs mistakes of clients as errors, and
// every connection at level INFO.
func quieter(log *slog.Logger) *slog.Logger {
	h := &handler{next: log.Handler(), component: "mcp-protocol", shift: slog.LevelError - slog.LevelWarn}
	if inner, ok := log.Handler().(*handler); ok {
		h.next = inner.next
	}
	return slog.New(h)
}

// redactor replaces these secrets.
type redactor []string

// replace renames slog's keys to those of the specification, and redacts.
func (r redactor) replace(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch a.Key {
		case slog.TimeKey:
			return slog.String("timestamp", a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
		case slog.MessageKey:
			a.Key = "message"
		case slog.LevelKey:
			return a
		}
	}
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(r.redact(a.Value.String()))
	case slog.KindAny:
		if err, ok := a.Value.Any().(error); ok {
			a.Value = slog.StringValue(r.redact(err.Error()))
		} else if s, ok := a.Value.Any().(interface{ String() string }); ok {
			a.Value = slog.StringValue(r.redact(s.String()))
		}
	}
	return a
}

func (r redactor) redact(s string) string { return text.Redact(s, r...) }
