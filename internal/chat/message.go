package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxMessage is how large a message's text may be, in bytes.
const MaxMessage = 1 << 20

// maxHandle bounds what agents may call themselves, in bytes.
const maxHandle = 64

// maxForeignHandle bounds what other programs may let them call themselves.
const maxForeignHandle = 256

// TimestampFormat is ISO 8601 in UTC with milliseconds (REQ-MESSAGE-005,
// REQ-I18N-003).
const TimestampFormat = "2006-01-02T15:04:05.000Z"

// messageVersion is the version of the payload (REQ-DESIGN-MSG-004).
const messageVersion = 1

// HandlePattern is what a handle must match (REQ-TOOL-003).
const HandlePattern = "^[a-z0-9-]+$"

var handleRegexp = regexp.MustCompile(HandlePattern)

// Message is one message of a channel.
type Message struct {
	Handle    string
	Text      string
	Timestamp time.Time
	// Sequence is the message's place in the channel, counted from 1.
	Sequence uint64
	// ID is that of its Receipt; empty where another program sent it without one.
	ID string
}

// Size is about what the message takes of an answer, in bytes: a line break is five of
// the text, any other control character six of JSON.
func (m Message) Size() int {
	size := len(m.Handle) + len(m.Text)
	for i := range len(m.Text) {
		if m.Text[i] < ' ' {
			size += 5
		}
	}
	return size
}

// String formats the message as agents read it (REQ-TOOL-030). Only the first
// line begins at the margin, so that no text can pass for another message.
func (m Message) String() string {
	return fmt.Sprintf("[%s] **%s**: %s", m.Timestamp.UTC().Format(TimestampFormat), visible(m.Handle), indent(m.Text))
}

// indent moves every line but the first away from the margin. All that a
// terminal or a model could take for a line break counts as one, and what a
// terminal obeys, so that text could overwrite what stands before it, becomes a
// sign that stands for it.
func indent(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for _, r := range text {
		switch r {
		case '\n', '\r', '\v', '\f', '\u0085', '\u2028', '\u2029':
			b.WriteString("\n    ")
		default:
			b.WriteRune(harmless(r))
		}
	}
	return b.String()
}

// harmless is a sign for a control character.
func harmless(r rune) rune {
	switch {
	case r == '\t':
		return r
	case r < ' ':
		return '\u2400' + r // Unicode has a picture of each
	case r == '\u007f':
		return '\u2421'
	case unicode.IsControl(r):
		return utf8.RuneError
	}
	return r
}

// visible replaces what a foreign sender's handle must not contain to stand in
// one line.
func visible(handle string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == '*' {
			return '?'
		}
		return r
	}, handle)
}

// CheckHandle says whether an agent may call itself so (REQ-TOOL-003,
// REQ-TOOL-007, REQ-ERROR-004).
func CheckHandle(handle string) error {
	if handleRegexp.MatchString(handle) && len(handle) <= maxHandle {
		return nil
	}
	return &Error{
		Category: ValidationError,
		Message:  fmt.Sprintf("Invalid handle %s.", quote(handle)),
		Remedy: fmt.Sprintf("A handle has lowercase letters, digits and hyphens only (pattern: %s) and at most %d characters, for example: project-manager.",
			HandlePattern, maxHandle),
	}
}

func checkText(text string) error {
	switch {
	case text == "":
		return &Error{Category: ValidationError, Message: "The message is empty.", Remedy: "Say something in it."}
	case !utf8.ValidString(text):
		return &Error{Category: ValidationError, Message: "The message is not valid UTF-8.", Remedy: "Send text only; encode binary data, for example with base64."}
	case len(text) > MaxMessage:
		return &Error{Category: ValidationError, Message: fmt.Sprintf("The message is %d bytes long; at most %d are allowed.", len(text), MaxMessage),
			Remedy: "Write the long part to a file and send its path, or split the message."}
	}
	return nil
}

// quote shows what somebody typed, shortened.
func quote(text string) string {
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	return fmt.Sprintf("%q", text)
}

// payload is a message on the bus (REQ-MESSAGE-002). Fields of later versions
// are ignored (REQ-DESIGN-MSG-001).
type payload struct {
	Handle    string `json:"handle"`
	Message   string `json:"message"`
	Timestamp string `json:"timestamp"`
	Version   int    `json:"version,omitempty"`
}

func encode(handle, text string, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(handle) + len(text) + 128) // enough but where much is escaped
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // code is full of < and &, and they would take six bytes each
	if err := enc.Encode(payload{handle, text, at.UTC().Format(TimestampFormat), messageVersion}); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode reads a message that this or another program has published.
func decode(data []byte) (Message, error) {
	var p struct {
		payload
		Message *string `json:"message"` // to tell none from an empty one
	}
	if !utf8.Valid(data) {
		return Message{}, errors.New("not UTF-8")
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return Message{}, err
	}
	if p.Handle == "" {
		return Message{}, errors.New("no handle")
	}
	if len(p.Handle) > maxForeignHandle {
		return Message{}, fmt.Errorf("a handle of %d bytes", len(p.Handle))
	}
	if p.Message == nil {
		return Message{}, errors.New("no message")
	}
	at, err := time.Parse(time.RFC3339Nano, p.Timestamp)
	if err != nil {
		return Message{}, err
	}
	return Message{Handle: p.Handle, Text: *p.Message, Timestamp: at}, nil
}
