package runner

import (
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
)

// Bounds of what a message's files become.
const (
	maxInline    = 64 << 10 // bytes of a text file that is put into the prompt
	maxFiles     = 100      // files of one message
	maxFileBytes = 64 << 20 // of all of them
	maxFileName  = 100      // bytes of a file's name in the inbox
)

// between stands between the parts of a message.
const between = "\n\n"

// inboxDir lies below the working directory and holds the files that came with
// messages, those of each task by themselves.
const inboxDir = ".parley/inbox"

// PromptText is a message as text for an agent that takes only text, at most max
// bytes of it. Nothing is dropped: data is shown as JSON, text files stand
// between fences, other files and links are described in words.
func PromptText(parts []*a2a.Part, max int) (string, *Error) {
	return BuildPrompt(Turn{Parts: parts}, "", max)
}

// BuildPrompt is PromptText with files: those that are not short text are written
// to .parley/inbox/<task> below dir, under names that are safe, and the prompt
// says where. Symbolic links do not lead out of dir. The error has CodeLimit where
// a bound is passed, else CodeInternal.
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
			return "", &Error{
				Code:    CodeLimit,
				Message: fmt.Sprintf("the message is longer than the %d bytes that this agent takes", max),
				Remedy:  "send long text as a file, or raise limits.maxPrompt of the agent",
			}
		}
	}
	return strings.Join(b.pieces, between), nil
}

// WithRole puts an agent's role (Definition.SystemPrompt) before the first prompt
// of a session.
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

// file puts short text between fences and everything else into the inbox.
func (b *promptBuilder) file(p *a2a.Part, content []byte) *Error {
	b.files++
	b.bytes += len(content)
	if b.files > maxFiles || b.bytes > maxFileBytes {
		return &Error{
			Code:    CodeLimit,
			Message: fmt.Sprintf("the message has more than %d files or more than %d bytes of them", maxFiles, maxFileBytes),
		}
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

// saveInbox writes a file that is not there yet and returns its path relative to
// dir. The root keeps links that an agent has planted from leading elsewhere.
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
	// Keeps the inbox out of the commits of a repository that the agent works in.
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
		if i > 0 { // an earlier message of the task had one of that name
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

// safeTask is a folder's name for a task: the id where it is harmless, else its
// hash.
func safeTask(id string) string {
	harmless := id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(r rune) bool {
		return r != '-' && r != '_' && !isAlnum(r)
	})
	if harmless && !strings.HasPrefix(id, "-") {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// safeName keeps of a file's name what is harmless on every system. The caller
// puts a number before it, so neither a dot nor a dash begins it, and it is no
// device.
func safeName(p *a2a.Part) string {
	base := p.Filename
	if i := strings.LastIndexAny(base, `/\`); i >= 0 {
		base = base[i+1:]
	}
	name := strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' || isAlnum(r) {
			return r
		}
		return '_'
	}, base)
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

func isAlnum(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// describe is a file's name and media type in words.
func describe(p *a2a.Part) string {
	name := oneLine(p.Filename, 255)
	if name == "" {
		name = "without a name"
	}
	if p.MediaType == "" {
		return name
	}
	return name + " (" + oneLine(p.MediaType, 100) + ")"
}

// oneLine makes foreign text harmless within a line.
func oneLine(s string, max int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	return strings.TrimSpace(cutUTF8(s, max))
}

// fence puts text between fences that it does not hold itself.
func fence(language, text string) string {
	longest, run := 0, 0
	for _, r := range text {
		if r == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	marks := strings.Repeat("`", max(3, longest+1))
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return marks + language + "\n" + text + marks
}

// isText reports whether content can stand in a prompt: it says nothing else of
// itself and looks like it.
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
	for _, c := range content {
		if c < ' ' && c != '\n' && c != '\t' && c != '\r' && c != '\f' {
			return false
		}
	}
	return true
}
