package runner

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"os"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
)

// Bounds of a message's files.
const (
	maxInline    = 64 << 10 // bytes of a text file within the prompt
	maxFiles     = 100      // files of one message
	maxFileBytes = 64 << 20 // bytes of all files of one message
	maxFileName  = 100      // bytes of a file's name in the inbox
)

// between separates the parts of a message.
const between = "\n\n"

// inboxDir is below the working directory and holds the files of messages, in a directory for each task.
const inboxDir = ".parley/inbox"

// PromptText returns a message of at most max bytes as text, for an agent without files. It drops nothing: data
// becomes JSON, text files are fenced, other files and links are described in words.
func PromptText(parts []*a2a.Part, max int) (string, *Error) {
	return BuildPrompt(Turn{Parts: parts}, "", max)
}

// BuildPrompt is [PromptText] with files: those that are not short text are written to .parley/inbox/<task> below
// dir under safe names, which the prompt states. Symbolic links cannot redirect them out of dir. The error has
// CodeLimit if a bound is exceeded, else CodeInternal.
func BuildPrompt(turn Turn, dir string, max int) (string, *Error) {
	b := promptBuilder{dir: dir, task: turn.TaskID}
	for _, p := range turn.Parts {
		if p == nil {
			continue
		}
		if err := b.part(p); err != nil {
			return "", err
		}
		if b.size > max {
			return "", &Error{Code: CodeLimit,
				Message: fmt.Sprintf("the message is longer than the %d bytes that this agent takes", max),
				Remedy:  "send long text as a file, or raise limits.maxPrompt of the agent"}
		}
	}
	return strings.Join(b.pieces, between), nil
}

// WithRole puts an agent's role (Definition.SystemPrompt) before the first prompt of a session.
func WithRole(role, prompt string) string {
	if role == "" {
		return prompt
	}
	return role + between + prompt
}

type promptBuilder struct {
	dir, task string
	pieces    []string
	size      int
	files     int
	bytes     int
}

func (b *promptBuilder) add(s string) {
	if len(b.pieces) > 0 {
		b.size += len(between)
	}
	b.pieces = append(b.pieces, s)
	b.size += len(s)
}

func (b *promptBuilder) part(p *a2a.Part) *Error {
	switch c := p.Content.(type) {
	case a2a.Text:
		if p.Filename != "" {
			return b.file(p, []byte(c))
		}
		b.add(string(c))
	case a2a.Raw:
		return b.file(p, c)
	case a2a.URL:
		b.add(fmt.Sprintf("[Attached link to a file: %s: %s]", describe(p), oneLine(string(c), 4096)))
	case a2a.Data:
		text, err := json.MarshalIndent(c.Value, "", "  ")
		if err != nil {
			return &Error{Code: CodeInternal, Message: "the message holds data that cannot be written as JSON", Err: err}
		}
		b.add(fence("json", string(text)))
	default:
		b.add("[A part of a kind that is not known here was left out]")
	}
	return nil
}

// file adds short text to the prompt and writes any other file to the inbox.
func (b *promptBuilder) file(p *a2a.Part, content []byte) *Error {
	b.files++
	b.bytes += len(content)
	if b.files > maxFiles || b.bytes > maxFileBytes {
		return &Error{Code: CodeLimit,
			Message: fmt.Sprintf("the message has more than %d files or more than %d bytes of them", maxFiles, maxFileBytes)}
	}
	if len(content) <= maxInline && isText(p.MediaType, content) {
		b.add(fmt.Sprintf("[Attached file: %s]\n%s", describe(p), fence("", string(content))))
		return nil
	}
	if b.dir == "" {
		b.add(fmt.Sprintf("[Attached file: %s, %d bytes; this agent does not take files]", describe(p), len(content)))
		return nil
	}
	name, err := saveInbox(b.dir, b.task, fmt.Sprintf("%02d-%s", b.files, safeName(p)), content)
	if err != nil {
		return &Error{Code: CodeInternal, Message: "an attached file could not be written to the agent's working directory", Err: err}
	}
	b.add(fmt.Sprintf("[Attached file: %s, %d bytes, saved as %s]", describe(p), len(content), name))
	return nil
}

// saveInbox writes a new file and returns its path relative to dir. os.Root prevents
// that an agent's symbolic link redirects it.
func saveInbox(dir, task, name string, content []byte) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close() //nolint:errcheck // a directory opened for reading
	folder := path.Join(inboxDir, safeTask(task))
	if err := root.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	// Keep the inbox out of commits, if the agent works in a repository.
	ignore, err := root.OpenFile(path.Join(path.Dir(inboxDir), ".gitignore"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = ignore.WriteString("*\n")
		err = errors.Join(err, ignore.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	for i := range 1000 {
		file := path.Join(folder, name)
		if i > 0 { // the name is that of an earlier message's file
			file = path.Join(folder, fmt.Sprintf("%d-%s", i, name))
		}
		f, err := root.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = f.Write(content)
		return file, errors.Join(err, f.Close())
	}
	return "", fs.ErrExist
}

// safeTask returns a directory name for a task: its id if that is safe, else its hash.
func safeTask(id string) string {
	if harmlessTask().MatchString(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

var (
	harmlessTask = text.Pattern(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
	unsafeInName = text.Pattern(`[^A-Za-z0-9._-]`)
	backquotes   = text.Pattern("`+")
)

// safeName returns a file's name with only the characters that are safe on every system. The caller puts a number
// before it, so that it begins with neither a dot nor a dash, and is no device.
func safeName(p *a2a.Part) string {
	base := p.Filename[strings.LastIndexAny(p.Filename, `/\`)+1:]
	name := unsafeInName().ReplaceAllString(base, "_")
	if len(name) > maxFileName { // keep the end, with the extension
		name = name[len(name)-maxFileName:]
	}
	if strings.Trim(name, "._-") != "" {
		return strings.TrimRight(name, ".")
	}
	if ext, err := mime.ExtensionsByType(p.MediaType); err == nil && len(ext) > 0 {
		return "file" + ext[0]
	}
	return "file.bin"
}

// describe returns a file's name and media type in words.
func describe(p *a2a.Part) string {
	name := cmp.Or(oneLine(p.Filename, 255), "without a name")
	if p.MediaType == "" {
		return name
	}
	return name + " (" + oneLine(p.MediaType, 100) + ")"
}

// oneLine returns at most max bytes of s without line ends and control characters.
func oneLine(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.TrimSpace(text.Cut(s, max))
}

// fence puts text between code fences that are longer than any within it.
func fence(language, text string) string {
	longest := 2
	for _, run := range backquotes().FindAllString(text, -1) {
		longest = max(longest, len(run))
	}
	marks := strings.Repeat("`", longest+1)
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return marks + language + "\n" + text + marks
}

// isText reports whether a file can be part of a prompt: its media type is empty or a
// text format, and its content is text.
func isText(mediaType string, content []byte) bool {
	t, _, err := mime.ParseMediaType(mediaType)
	if err != nil {
		t = ""
	}
	major, minor, _ := strings.Cut(t, "/")
	switch {
	case t == "", major == "text":
	case strings.HasSuffix(minor, "json"), strings.HasSuffix(minor, "xml"), strings.HasSuffix(minor, "yaml"),
		minor == "javascript", minor == "x-sh", minor == "toml", minor == "sql", minor == "x-ndjson":
	default:
		return false
	}
	if !utf8.Valid(content) {
		return false
	}
	return !bytes.ContainsFunc(content, func(c rune) bool { return c < ' ' && !strings.ContainsRune("\n\t\r\f", c) })
}
