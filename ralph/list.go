package ralph

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/parleyhub/parley/internal/base/local"
	"github.com/parleyhub/parley/internal/base/text"
)

// Limits of a list in a file.
const (
	MaxListFile = 8 << 20 // bytes
	MaxItems    = 10_000
	MaxItemText = 64 << 10 // bytes
)

// Item is one task of a list.
type Item struct {
	ID           string   `json:"id"` // does not change when the list is read again
	Text         string   `json:"text"`
	Capabilities []string `json:"capabilities,omitempty"` // that its agents need
	Done         bool     `json:"done"`
}

// List is the source of a loop's items: a file ([Open]) or a queue.
type List interface {
	// Items returns the items in order. It may omit done ones.
	Items(ctx context.Context) ([]Item, error)
	// Complete durably marks an item as done; repeating it does nothing. An error with
	// CodeLost means that another worker has the item, or that it was removed.
	Complete(ctx context.Context, id string, o Outcome) error
}

// Dropper is a List from which items that were given up are removed.
type Dropper interface {
	// Drop durably removes an item; repeating it does nothing.
	Drop(ctx context.Context, id, reason string) error
}

// File is a list in a file: Markdown with check boxes, or JSON.
//
// Markdown items are list items with a box, "- [ ] do this", outside of code blocks;
// lines below that are indented further and are not items belong to the text. JSON is
// an array of objects, or an object with such an array as "tasks":
// {"id", "task", "done", "capabilities"}, of which only task is required.
//
// Completing an item changes its box or its "done" and no other byte; the file is replaced in one step.
type File struct {
	path  string
	parse func([]byte) ([]entry, error)
}

// entry is an item and how to mark it.
type entry struct {
	Item
	at, end int    // the bytes that mark replaces
	mark    string // when it is done
}

// Open returns the list in a file: JSON if its name ends in ".json". Each method reads the file again.
func Open(path string) (*File, error) {
	resolved, err := filepath.EvalSymlinks(path) // a link must not be replaced
	if err != nil {
		return nil, wrap(CodeList, err, "the task list cannot be found")
	}
	f := &File{path: resolved, parse: parseMarkdown}
	if strings.EqualFold(filepath.Ext(path), ".json") {
		f.parse = parseJSON
	}
	_, _, err = f.read()
	return f, err
}

// Path returns where the file is, with symbolic links resolved.
func (f *File) Path() string { return f.path }

func (f *File) read() ([]byte, []entry, error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, nil, wrap(CodeList, err, "the task list cannot be read")
	}
	if !info.Mode().IsRegular() || info.Size() > MaxListFile {
		return nil, nil, wrap(CodeList, nil, "the task list %s is not a file of at most %d bytes", f.path, MaxListFile)
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, nil, wrap(CodeList, err, "the task list cannot be read")
	}
	entries, err := f.parse(data)
	if err != nil {
		return nil, nil, wrap(CodeList, err, "the task list %s cannot be read", f.path)
	}
	if len(entries) > MaxItems {
		return nil, nil, wrap(CodeList, nil, "the task list %s has more than %d items", f.path, MaxItems)
	}
	return data, entries, nil
}

// Items implements [List].
func (f *File) Items(context.Context) ([]Item, error) {
	_, entries, err := f.read()
	if err != nil {
		return nil, err
	}
	items := make([]Item, len(entries))
	for i, e := range entries {
		items[i] = e.Item
	}
	return items, nil
}

// Complete implements [List]. It retries if the file changes meanwhile.
func (f *File) Complete(ctx context.Context, id string, _ Outcome) error {
	const attempts = 10
	for range attempts {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, entries, err := f.read()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(entries, func(e entry) bool { return e.ID == id })
		if i < 0 {
			return wrap(CodeLost, nil, "the item %s is not in the task list any more", id)
		}
		e := entries[i]
		if e.Done {
			return nil
		}
		ticked := bytes.Join([][]byte{data[:e.at], []byte(e.mark), data[e.end:]}, nil)
		err = replace(f.path, ticked, data)
		if !errors.Is(err, errChanged) {
			return err
		}
	}
	return wrap(CodeList, nil, "the task list %s changes all the time", f.path)
}

var errChanged = errors.New("the file has changed")

// replace replaces a file's content in one step and durably. If the content is not old
// any more it returns errChanged.
func replace(path string, content, old []byte) error {
	info, err := os.Stat(path)
	if err == nil {
		err = writeFile(path, content, info.Mode().Perm(), func() error {
			now, err := os.ReadFile(path)
			if err == nil && !bytes.Equal(now, old) {
				err = errChanged
			}
			return err
		})
	}
	if err == nil || errors.Is(err, errChanged) {
		return err
	}
	return wrap(CodeList, err, "%s cannot be written", path)
}

// writeFile makes or replaces a file in one step and durably, unless check, which may be nil, fails.
func writeFile(path string, content []byte, mode fs.FileMode, check func() error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".parley-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name()) // the first error counts
		}
	}()
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if check != nil {
		if err = check(); err != nil {
			return err
		}
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return local.SyncDir(filepath.Dir(path))
}

var (
	boxPattern   = text.Pattern(`^([ \t]*)(?:[-*+]|\d{1,9}[.)])[ \t]+\[([ xX])\][ \t]+(.*\S)[ \t]*$`)
	fencePattern = text.Pattern("^[ \t]*(`{3,}|~{3,})")
)

// parseMarkdown finds the items of a Markdown document.
func parseMarkdown(data []byte) ([]entry, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("it is not UTF-8")
	}
	ids := make(names)
	var entries []entry
	fence, indent := "", -1 // of the item that lines may belong to
	for at := 0; at < len(data); {
		end := at + bytes.IndexByte(data[at:], '\n')
		if end < at {
			end = len(data)
		}
		line := strings.TrimSuffix(string(data[at:end]), "\r")
		start := at
		at = end + 1
		if f := fencePattern().FindStringSubmatch(line); f != nil {
			if fence == "" {
				fence = f[1]
			} else if strings.HasPrefix(f[1], fence) && strings.TrimSpace(strings.TrimLeft(line, " \t"+fence[:1])) == "" {
				fence = ""
			}
		} else if m := boxPattern().FindStringSubmatchIndex(line); m != nil && fence == "" {
			text := line[m[6]:m[7]]
			entries = append(entries, entry{
				Item: Item{ID: ids.of(text), Text: text, Done: line[m[4]] != ' '},
				at:   start + m[4], end: start + m[5], mark: "x",
			})
			indent = m[3]
			continue
		}
		if len(entries) == 0 || indent < 0 {
			continue
		}
		if rest := strings.TrimLeft(line, " \t"); rest == "" || len(line)-len(rest) > indent {
			last := &entries[len(entries)-1]
			if len(last.Text)+len(line) < MaxItemText {
				last.Text += "\n" + rest
			}
			continue
		}
		indent = -1
	}
	for i := range entries {
		entries[i].Text = strings.TrimSpace(entries[i].Text)
	}
	return entries, nil
}

// names derives ids from texts, with a number for repeated texts.
type names map[string]int

func (n names) of(text string) string {
	sum := sha256.Sum256([]byte(text))
	id := hex.EncodeToString(sum[:6])
	n[id]++
	if n[id] > 1 {
		return fmt.Sprintf("%s-%d", id, n[id])
	}
	return id
}

// parseJSON finds the items of a JSON document and the places of their marks.
func parseJSON(data []byte) ([]entry, error) {
	if !utf8.Valid(data) || !json.Valid(data) {
		return nil, errors.New("it is not JSON")
	}
	p := &jsonParser{dec: json.NewDecoder(bytes.NewReader(data)), ids: make(names), known: make(map[string]bool)}
	open, err := p.dec.Token()
	if err != nil {
		return nil, err
	}
	switch open {
	case json.Delim('['):
		return p.items()
	case json.Delim('{'):
	default:
		return nil, errors.New("it is neither an array nor an object")
	}
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return nil, err
		}
		if key != "tasks" {
			if _, _, err := p.skip(); err != nil {
				return nil, err
			}
			continue
		}
		if open, err := p.dec.Token(); err != nil || open != json.Delim('[') {
			return nil, errors.Join(errors.New("tasks is not an array"), err)
		}
		return p.items()
	}
	return nil, errors.New("it has no array tasks")
}

type jsonParser struct {
	dec   *json.Decoder
	ids   names
	known map[string]bool
}

// skip reads a value and returns its offset.
func (p *jsonParser) skip() (raw json.RawMessage, at int, err error) {
	err = p.dec.Decode(&raw)
	return raw, int(p.dec.InputOffset()) - len(raw), err
}

func (p *jsonParser) items() ([]entry, error) {
	var entries []entry
	for p.dec.More() {
		e, err := p.item()
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", len(entries)+1, err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func (p *jsonParser) item() (entry, error) {
	if open, err := p.dec.Token(); err != nil || open != json.Delim('{') {
		return entry{}, errors.Join(errors.New("it is not an object"), err)
	}
	begin := int(p.dec.InputOffset())
	e := entry{at: begin, end: begin, mark: `"done": true, `}
	targets := map[string]any{"id": &e.ID, "task": &e.Text, "capabilities": &e.Capabilities, "done": &e.Done}
	for p.dec.More() {
		token, err := p.dec.Token()
		if err != nil {
			return e, err
		}
		key, _ := token.(string) // keys are strings
		raw, at, err := p.skip()
		if err != nil {
			return e, err
		}
		target, known := targets[key]
		switch {
		case !known:
			continue
		case target == nil:
			return e, fmt.Errorf("%q occurs twice", key)
		case string(raw) == "null" || json.Unmarshal(raw, target) != nil:
			return e, fmt.Errorf("%q has a value of the wrong kind", key)
		case key == "done":
			e.at, e.end, e.mark = at, at+len(raw), "true"
		}
		targets[key] = nil
	}
	if _, err := p.dec.Token(); err != nil { // the brace
		return e, err
	}
	switch {
	case strings.TrimSpace(e.Text) == "":
		return e, errors.New(`"task" is missing`)
	case len(e.Text) > MaxItemText || len(e.ID) > 256:
		return e, errors.New("it is too long")
	}
	if e.ID == "" {
		e.ID = p.ids.of(e.Text)
	}
	if p.known[e.ID] {
		return e, fmt.Errorf("another item has the id %q", e.ID)
	}
	p.known[e.ID] = true
	return e, nil
}
