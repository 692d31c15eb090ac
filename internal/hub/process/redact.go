package process

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/parleyhub/parley/internal/base/text"
)

const redacted = "[redacted]"

// minSecret is the shortest value of a secret-looking variable that is redacted. Shorter
// ones ("1", "true") would redact harmless text.
const minSecret = 6

var secretName = text.Pattern(`(?i)(key|token|secret|pass(word|wd|phrase)?|credential|auth|cookie|private|session_id|dsn)`)

// NamesSecret reports whether a variable's name looks like that of a secret.
func NamesSecret(name string) bool { return name != MarkerEnv && secretName().MatchString(name) }

// secretFormat matches secrets by their format. A first group of the pattern is kept. Every match has one of the
// words in lower case: most texts have none of them, and are not searched with the pattern, which is slow.
type secretFormat struct {
	words   []string
	pattern *regexp.Regexp
}

var secretFormats = sync.OnceValue(func() []secretFormat {
	return []secretFormat{
		// URLs with a user or a password.
		{[]string{"://"}, regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#"'<>]+@`)},
		{[]string{"bearer", "basic"}, regexp.MustCompile(`(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`)},
		{[]string{"api", "secret", "passw", "auth", "access", "refresh", "id_token", "id-token", "idtoken"}, regexp.MustCompile(`(?i)(\b(?:x-api-key|x-goog-api-key|api[_-]?key|access[_-]?token|refresh[_-]?token|auth[_-]?token|id[_-]?token|client[_-]?secret|secret|password|passwd|authorization)\b\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,;&}]{4,}`)},
		{[]string{"token"}, regexp.MustCompile(`(?i)(\btoken\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,;&}]{8,}`)},
		{[]string{"key=", "token=", "sig=", "signature="}, regexp.MustCompile(`(?i)([?&](?:key|token|access_token|api_key|sig|signature)=)[^\s"'&]+`)},
		// Vendors' keys: Anthropic and OpenAI, Google, GitHub, Slack, AWS, GitLab.
		{[]string{"sk-", "pk-", "rk-"}, regexp.MustCompile(`\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}`)},
		{[]string{"aiza"}, regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{20,}`)},
		{[]string{"ya29."}, regexp.MustCompile(`\bya29\.[A-Za-z0-9_-]{10,}`)},
		{[]string{"ghp_", "gho_", "ghu_", "ghr_", "ghs_", "github_pat_"}, regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}`)},
		{[]string{"xox"}, regexp.MustCompile(`\bxox[a-z]-[A-Za-z0-9-]{8,}`)},
		{[]string{"akia", "asia"}, regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{12,}`)},
		{[]string{"glpat-"}, regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{10,}`)},
		// Stripe, npm, Hugging Face.
		{[]string{"_live_", "_test_"}, regexp.MustCompile(`\b[prs]k_(?:live|test)_[A-Za-z0-9]{16,}`)},
		{[]string{"npm_", "hf_"}, regexp.MustCompile(`\b(?:npm|hf)_[A-Za-z0-9]{30,}`)},
		// Private keys, also without their end, and the seeds in credentials for NATS.
		{[]string{"private key", "nkey seed"}, regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*(?:PRIVATE KEY|NKEY SEED)-----.*?(?:------?END [A-Z ]*-----|\z)`)},
		// JSON web tokens.
		{[]string{"eyj"}, regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*)?`)},
	}
})

// redact returns s without the secrets of the format. lower is the original text in lower case.
func (f secretFormat) redact(s, lower string) string {
	if !slices.ContainsFunc(f.words, func(w string) bool { return strings.Contains(lower, w) }) {
		return s
	}
	if f.pattern.NumSubexp() > 0 {
		return f.pattern.ReplaceAllString(s, "${1}"+redacted)
	}
	return f.pattern.ReplaceAllString(s, redacted)
}

// Redactor removes secrets from text for users and logs. It is safe for concurrent use.
// The nil Redactor recognizes secrets only by their format.
type Redactor struct{ values *strings.Replacer }

// NewRedactor returns a redactor that also recognizes secrets, and the values of variables of env whose names look
// like those of secrets. It recognizes them in JSON, too.
func NewRedactor(env []string, secrets ...string) *Redactor {
	var values []string
	for _, s := range secrets {
		if len(s) >= minSecret {
			values = append(values, s)
		}
	}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		if len(value) >= minSecret && NamesSecret(name) {
			values = append(values, value)
		}
	}
	if len(values) == 0 {
		return nil
	}
	for _, v := range values {
		values = append(values, inJSON(v)...)
	}
	// The longest first, so that a value within another leaves no remainder.
	slices.SortFunc(values, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	pairs := make([]string, 0, 2*len(values))
	for _, v := range values {
		pairs = append(pairs, v, redacted)
	}
	return &Redactor{values: strings.NewReplacer(pairs...)}
}

// inJSON returns the forms of a value in JSON strings that differ from it.
func inJSON(value string) []string {
	var forms []string
	for _, escapeHTML := range []bool{true, false} {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(escapeHTML)
		if enc.Encode(value) != nil {
			continue // a string always encodes
		}
		form := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(b.String(), "\n"), `"`), `"`)
		if form != value && !slices.Contains(forms, form) {
			forms = append(forms, form)
		}
	}
	return forms
}

// Redact returns s without its secrets, as valid UTF-8.
func (r *Redactor) Redact(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if r != nil {
		s = r.values.Replace(s)
	}
	lower := strings.ToLower(s)
	for _, f := range secretFormats() {
		s = f.redact(s, lower)
	}
	return s
}

// Beginning returns the beginning of a long text, a little more than limit bytes, which a caller cuts to limit after its
// redaction. It ends between two words, so that no secret is cut and thus not recognized.
func Beginning(s string, limit int) string {
	const longestSecret = 4 << 10
	if len(s) <= limit+longestSecret {
		return s
	}
	s = text.Cut(s, limit+longestSecret)
	if i := strings.LastIndexAny(s, " \n\t"); i > len(s)-longestSecret {
		return s[:i]
	}
	return text.Cut(s, limit)
}

// tail keeps the end of a stream. It holds twice the size that it shows, so that a secret
// that is truncated at the front is in the part not shown.
type tail struct {
	size   int
	redact *Redactor
	line   func(string) bool // see Command.Stderr, may be nil
	begun  []byte            // the line that has no end yet, for line

	mu  sync.Mutex
	buf []byte // at most 4*size, the last 2*size count
	cut bool
}

func newTail(size int, r *Redactor, line func(string) bool) *tail {
	return &tail{size: size, redact: r, line: line}
}

// maxStderrLine bounds a line for Command.Stderr, in bytes. The rest of a longer line is a line of its own.
const maxStderrLine = 8 << 10

func (t *tail) drain(r io.Reader) {
	buf := make([]byte, 8<<10)
	for {
		n, err := r.Read(buf)
		t.lines(buf[:n])
		if err != nil {
			t.endLine("")
			return // the end, or a deadline after the end
		}
	}
}

// lines writes the lines of b that are to be kept. It is for the goroutine that drains.
func (t *tail) lines(b []byte) {
	if t.line == nil {
		t.write(b)
		return
	}
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		switch {
		case i >= 0 && len(t.begun)+i <= maxStderrLine:
			t.begun = append(t.begun, b[:i]...)
			t.endLine("\n")
			b = b[i+1:]
		case len(t.begun)+len(b) <= maxStderrLine:
			t.begun = append(t.begun, b...)
			return
		default:
			n := maxStderrLine - len(t.begun)
			t.begun = append(t.begun, b[:n]...)
			t.endLine("")
			b = b[n:]
		}
	}
}

// endLine writes the line that has begun.
func (t *tail) endLine(end string) {
	if t.line == nil || len(t.begun) == 0 && end == "" {
		return
	}
	if t.line(strings.ToValidUTF8(strings.TrimSuffix(string(t.begun), "\r"), "\uFFFD")) {
		t.write(append(t.begun, end...))
	}
	t.begun = t.begun[:0]
}

func (t *tail) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if len(t.buf) > 4*t.size {
		t.cut = true
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-2*t.size:]...)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	raw, cut := t.buf, t.cut
	if len(raw) > 2*t.size {
		raw, cut = raw[len(raw)-2*t.size:], true
	}
	s := string(raw)
	t.mu.Unlock()

	s = t.redact.Redact(s)
	if len(s) > t.size {
		s, cut = strings.ToValidUTF8(s[len(s)-t.size:], ""), true
	}
	if !cut {
		return s
	}
	// Begin with a whole line where there is one.
	if _, rest, ok := strings.Cut(s, "\n"); ok && rest != "" {
		s = rest
	}
	return s
}
