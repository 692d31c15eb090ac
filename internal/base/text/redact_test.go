package text_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/base/text"
)

func TestRedact(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"nats://me:hunter2@host:4222 is away", "nats://[redacted]@host:4222 is away"},
		{"token hunter2, again hunter2", "token [redacted], again [redacted]"},
		{"nothing to hide", "nothing to hide"},
	} {
		if got := text.Redact(tt.in, "hunter2", ""); got != tt.want {
			t.Errorf("%q becomes %q", tt.in, got)
		}
	}
}

func TestASecretIsNeverPrinted(t *testing.T) {
	secret := text.Secret("hunter2")
	encoded, err := json.Marshal(map[string]text.Secret{"token": secret})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("login", "token", secret)
	for _, out := range []string{string(encoded), log.String(), fmt.Sprintf("%v", secret), fmt.Sprint("token: ", secret), fmt.Sprintf("%#v", secret)} {
		if strings.Contains(out, "hunter2") || !strings.Contains(out, "[redacted]") {
			t.Errorf("printed: %s", out)
		}
	}
	if got := text.Secret("").String(); got != "" {
		t.Errorf("an empty secret prints %q", got)
	}
}

func TestAPatternIsCompiledWhenItIsUsed(t *testing.T) {
	invalid := text.Pattern(`(`) // does not panic
	defer func() {
		if recover() == nil {
			t.Error("an invalid expression was accepted")
		}
	}()
	if !text.Pattern(`^a+$`)().MatchString("aa") {
		t.Error("the expression does not match")
	}
	invalid()
}
