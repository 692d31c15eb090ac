package bus

import "log/slog"

const redacted = "[redacted]"

// Secret is a string that prints, logs and encodes as "[redacted]".
type Secret string

// String returns "[redacted]", or "" for an empty Secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is String for %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// LogValue is String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String for JSON and YAML.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
