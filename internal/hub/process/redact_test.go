package process_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/parleyhub/parley/internal/hub/process"
)

func TestSecretsAreRecognisedByTheirFormat(t *testing.T) {
	for _, secret := range []string{
		"sk-ant-api03-AbCdEf_12345-xyz", "sk-proj-1234567890abcdef", "AIzaSyA1234567890abcdefghijklmnop",
		"ghp_abcdefghijklmnopqrstuvwxyz0123", "github_pat_11ABCDEFG0abcdefghij", "xoxb-1234567890-abcdef",
		"AKIAIOSFODNN7EXAMPLE", "glpat-abcdefghij1234567890", "ya29.a0AfH6SMBx1234567890",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "sk_live_abcdefghijklmnop1234", "npm_abcdefghijklmnopqrstuvwxyz0123456789",
		"hf_abcdefghijklmnopqrstuvwxyz01234567", "xoxp-1234567890-abcdef", "gho_abcdefghijklmnopqrstuvwxyz0123", "ASIAIOSFODNN7EXAMPLE",
	} {
		for _, text := range []string{"key %s refused", "{\"k\":\"%s\"}", "%s", "a=%s;"} {
			got := (*process.Redactor)(nil).Redact(strings.ReplaceAll(text, "%s", secret))
			if strings.Contains(got, secret) || !strings.Contains(got, "[redacted]") {
				t.Errorf("%q", got)
			}
		}
	}
}

func TestSecretsAreRecognisedByTheirContext(t *testing.T) {
	const s = "qwertyuiop12"
	for _, text := range []string{
		"Authorization: Bearer " + s, "authorization: Basic " + s, "x-api-key: " + s, `"api_key": "` + s + `"`,
		"https://user:" + s + "@example.org/path", "http://" + s + "@proxy:3128", "https://me:p@" + s + "@example.org", "GET /v1?key=" + s + "&x=1",
		"-----BEGIN RSA PRIVATE KEY-----\nMII" + s + "\n-----END RSA PRIVATE KEY-----", `"-----BEGIN PRIVATE KEY-----\n` + s + `\n`,
		"-----BEGIN USER NKEY SEED-----\nSU" + s + "\n------END USER NKEY SEED------", "API_KEY=" + s, "PASSWORD: " + s, "TOKEN=" + s, "?SIG=" + s, "BEARER " + s,
		`{\"access_token\":\"` + s + `\"}`, "password=" + s, "client-secret = " + s, "token: " + s, "refresh_token='" + s + "'",
	} {
		if got := (*process.Redactor)(nil).Redact(text); strings.Contains(got, s) {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestOrdinaryTextIsUnchanged(t *testing.T) {
	for _, text := range []string{
		"", "exit code 1", "https://example.org/a?b=c", "token: 12", "input_tokens: 4096, max_tokens=8192", "skip-git-repo-check", "the key is under the mat",
		"user@example.org wrote", "Bearer of bad news", "[redacted]", "zwölf €", "Not logged in · Please run /login",
	} {
		if got := (*process.Redactor)(nil).Redact(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestValuesOfSecretVariablesAreHidden(t *testing.T) {
	r := process.NewRedactor([]string{
		"MY_API_KEY=outer-inner-value", "DB_PASSWORD=inner-value", "HUB_TOKEN=1", "PATH=/usr/bin:/bin", "AUTH_MODE=", "odd",
	})
	got := r.Redact("PATH=/usr/bin:/bin 1 outer-inner-value and inner-value\xff")
	if want := "PATH=/usr/bin:/bin 1 [redacted] and [redacted]\uFFFD"; got != want {
		t.Errorf("got %q", got)
	}
}

func TestRedactionIsIdempotentAndKeepsUTF8Valid(t *testing.T) {
	r := process.NewRedactor([]string{"A_SECRET=abcabcabc"})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`(key|token|: ?|=|"|abcabcabc|sk-|[a-z]{3}|Bearer |https://|@|\n){0,20}`)).Draw(t, "text")
		once := r.Redact(s)
		if !utf8.ValidString(once) || strings.Contains(once, "abcabcabc") {
			t.Fatalf("%q", once)
		}
		if twice := r.Redact(once); twice != once {
			t.Fatalf("%q, then %q", once, twice)
		}
	})
}

func FuzzRedact(f *testing.F) {
	f.Add("Bearer abcdefghi https://u:p@h token=abcdefghi")
	r := process.NewRedactor([]string{"A_SECRET=abcabcabc"})
	f.Fuzz(func(t *testing.T, s string) {
		if got := r.Redact(s); !utf8.ValidString(got) || strings.Contains(got, "abcabcabc") {
			t.Errorf("%q", got)
		}
	})
}

func TestEnvironIsSortedAndSetWins(t *testing.T) {
	got := process.Environ(
		[]string{"HOME=/h", "PATH=/p", "LC_ALL=C", "SECRET=x", "A_1=1", "AB=2", "=C:=x", "noequals", process.MarkerEnv + "=m.1"},
		[]string{"A_*", process.MarkerEnv}, map[string]string{"HOME": "/other", "Z": "="})
	if want := "A_1=1|HOME=/other|LC_ALL=C|PATH=/p|Z=="; strings.Join(got, "|") != want {
		t.Errorf("got %q", got)
	}
}
