package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parleyhub/parley/internal/base/display"
	"github.com/parleyhub/parley/internal/base/text"
)

const (
	// MaxMessage bounds the text of a message, in bytes.
	MaxMessage = 1 << 20
	// TimestampFormat is ISO 8601 in UTC with milliseconds.
	TimestampFormat = "2006-01-02T15:04:05.000Z"
	// HandlePattern is the regular expression for handles.
	HandlePattern = "^[a-z0-9-]+$"

	maxHandle        = 64  // bytes
	maxForeignHandle = 256 // bytes, in messages of other programs
	messageVersion   = 1   // of the payload
)

var handleRegexp = text.Pattern(HandlePattern)

// Message is one message of a channel.
type Message struct {
	Handle    string
	Text      string
	Timestamp time.Time
	// Sequence is the message's sequence number in the channel, from 1.
	Sequence uint64
	// ID is that of its Receipt; empty if another program sent the message without one.
	ID string
}

// Size estimates the bytes that the message takes in an answer: a line break takes five in the text, any other control
// character six in JSON.
func (m Message) Size() int {
	size := len(m.Handle) + len(m.Text)
	for i := range len(m.Text) {
		if m.Text[i] < ' ' {
			size += 5
		}
	}
	return size
}

// String formats the message for agents. All lines but the first are indented, so that no text can imitate another
// message.
func (m Message) String() string {
	return fmt.Sprintf("[%s] **%s**: %s", m.Timestamp.UTC().Format(TimestampFormat), visible(m.Handle), display.Indented(m.Text))
}

// visible replaces unprintable characters and asterisks in a foreign sender's handle.
func visible(handle string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == '*' {
			return '?'
		}
		return r
	}, handle)
}

// CheckHandle returns a ValidationError if handle is no valid handle.
func CheckHandle(handle string) error {
	if handleRegexp().MatchString(handle) && len(handle) <= maxHandle {
		return nil
	}
	return invalid(fmt.Sprintf("A handle has lowercase letters, digits and hyphens only (pattern: %s) and at most %d characters, for example: project-manager.",
		HandlePattern, maxHandle), "Invalid handle %s.", text.Quote(handle, 80))
}

// splitRemedy is the remedy for messages that are too large.
const splitRemedy = "Write the long part to a file and send its path, or split the message."

func checkText(text string) error {
	switch {
	case text == "":
		return invalid("Pass a text.", "The message is empty.")
	case !utf8.ValidString(text):
		return invalid("Send text only; encode binary data, for example with base64.", "The message is not valid UTF-8.")
	case len(text) > MaxMessage:
		return invalid(splitRemedy, "The message is %d bytes long; at most %d are allowed.", len(text), MaxMessage)
	}
	return nil
}

// payload is a message on the bus. Fields of later versions are ignored.
type payload struct {
	Handle    string `json:"handle"`
	Message   string `json:"message"`
	Timestamp string `json:"timestamp"`
	Version   int    `json:"version,omitempty"`
}

func encode(handle, text string, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(handle) + len(text) + 128) // enough unless much is escaped
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // escaped, < and & take six bytes each, and code is full of them
	if err := enc.Encode(payload{handle, text, at.UTC().Format(TimestampFormat), messageVersion}); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Subjects matches the subjects of all channels of a namespace.
func Subjects(namespace string) string { return namespace + ".*" }

// Published decodes a message of any program on a subject of a namespace's channels, for those who watch them. The
// message has no sequence.
func Published(namespace, subject string, header nats.Header, data []byte) (channel string, m Message, err error) {
	channel, ok := strings.CutPrefix(subject, namespace+".")
	if !ok {
		return "", Message{}, fmt.Errorf("%s is not a subject of the namespace", text.Quote(subject, 80))
	}
	if m, err = decode(data); err != nil {
		return "", Message{}, err
	}
	m.ID = header.Get(jetstream.MsgIDHeader)
	return channel, m, nil
}

// decode decodes a message that this or another program has published.
func decode(data []byte) (Message, error) {
	if !utf8.Valid(data) {
		return Message{}, errors.New("not UTF-8")
	}
	p, ok := decodeOwn(data)
	if !ok {
		if err := json.Unmarshal(data, &p); err != nil {
			return Message{}, err
		}
	}
	switch {
	case p.Handle == "":
		return Message{}, errors.New("no handle")
	case len(p.Handle) > maxForeignHandle:
		return Message{}, fmt.Errorf("a handle of %d bytes", len(p.Handle))
	case p.Message == nil:
		return Message{}, errors.New("no message")
	}
	at, err := time.Parse(time.RFC3339Nano, p.Timestamp)
	if err != nil {
		return Message{}, err
	}
	return Message{Handle: p.Handle, Text: *p.Message, Timestamp: at}, nil
}

// received is a payload in which the message may be missing.
type received struct {
	payload
	Message *string `json:"message"`
}

// decodeOwn decodes what encode has made, several times as fast as json.Unmarshal: most of a read's time is that. ok is
// false for anything else, also if it is valid.
func decodeOwn(data []byte) (p received, ok bool) {
	var message string
	for _, field := range [...]struct {
		before string
		to     *string
	}{{`{"handle":`, &p.Handle}, {`,"message":`, &message}, {`,"timestamp":`, &p.Timestamp}} {
		if data, ok = bytes.CutPrefix(data, []byte(field.before)); !ok {
			return received{}, false
		}
		if *field.to, data, ok = cutString(data); !ok {
			return received{}, false
		}
	}
	p.Message, p.Version = &message, messageVersion
	return p, string(data) == ownEnd || string(data) == "}"
}

// ownEnd is the end of what encode makes.
var ownEnd = fmt.Sprintf(`,"version":%d}`, messageVersion)

// cutString decodes the JSON string at the beginning of valid UTF-8.
func cutString(data []byte) (s string, rest []byte, ok bool) {
	if len(data) == 0 || data[0] != '"' {
		return "", nil, false
	}
	plain := true
	for i := 1; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"' && plain:
			return string(data[1:i]), data[i+1:], true
		case c == '"':
			err := json.Unmarshal(data[:i+1], &s)
			return s, data[i+1:], err == nil
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			return "", nil, false
		}
	}
	return "", nil, false
}
