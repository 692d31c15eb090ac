package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhub/parley/internal/bus"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// journal is a log whose records the test reads.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) records(t *testing.T) (all []map[string]any) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.buf.String()) {
		record := map[string]any{}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		all = append(all, record)
	}
	return all
}

// REQ-LOG-001, REQ-LOG-002, REQ-LOG-003, REQ-LOG-004, REQ-LOG-006, REQ-I18N-003
func TestRecordsHaveTheSpecifiedFields(t *testing.T) {
	var j journal
	log := mcpserver.NewLogger(&j, mcpconfig.Logging{Level: "INFO", Format: "json"})
	log.Debug("not shown")
	log.Info("plain", "n", 7)
	log.With("component", "nats-connection").With("channel", "roadmap").Warn("warned")
	log.WithGroup("g").Error("failed", "error", errors.New("boom"))
	log.Error("no exception")
	records := j.records(t)
	if len(records) != 4 {
		t.Fatalf("%d records", len(records))
	}
	stamp := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	for _, r := range records {
		if s, _ := r["timestamp"].(string); !stamp.MatchString(s) {
			t.Errorf("the timestamp of %v", r)
		}
		delete(r, "timestamp")
	}
	stack, _ := records[2]["g"].(map[string]any)["stack"].(string)
	if !strings.Contains(stack, "TestRecordsHaveTheSpecifiedFields") {
		t.Errorf("the stack is %q", stack)
	}
	delete(records[2]["g"].(map[string]any), "stack")
	want := []map[string]any{
		{"level": "INFO", "message": "plain", "component": "nats-mcp-server", "n": 7.0},
		{"level": "WARN", "message": "warned", "component": "nats-connection", "channel": "roadmap"},
		{"level": "ERROR", "message": "failed", "g": map[string]any{"component": "nats-mcp-server", "error": "boom"}},
		{"level": "ERROR", "message": "no exception", "component": "nats-mcp-server"},
	}
	if diff := cmp.Diff(want, records); diff != "" {
		t.Error(diff)
	}
	var text journal
	mcpserver.NewLogger(&text, mcpconfig.Logging{Level: "DEBUG", Format: "text"}).Debug("hello", "a", "b c")
	if got := text.buf.String(); !strings.Contains(got, `level=DEBUG message=hello component=nats-mcp-server a="b c"`) {
		t.Error(got)
	}
}

// REQ-SEC-004, REQ-LOG-008, REQ-SEC-TEST-003
func TestSecretsAreNeverLogged(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var j journal
		log := mcpserver.NewLogger(&j, mcpconfig.Logging{Level: "DEBUG", Format: format}, "hunter2", "")
		url := "nats://ann:s3cret@host:4222"
		log.Info("connecting to "+url+" with hunter2", "url", url, "password", "hunter2", "error", fmt.Errorf("dial %s: hunter2", url),
			"secret", bus.Secret("topsecret"), slog.Group("g", "url", url), "stringer", stringer(url))
		log.With("url", url).Info("later")
		got := j.buf.String()
		for _, secret := range []string{"hunter2", "s3cret", "topsecret"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s is in %s", secret, got)
			}
		}
		if !strings.Contains(got, "nats://[redacted]@host:4222") {
			t.Error(got)
		}
	}
}

type stringer string

func (s stringer) String() string { return string(s) }

// REQ-ERROR-005, REQ-LOG-005, REQ-USE-003
func TestToolCallsAreLogged(t *testing.T) {
	var j journal
	log := mcpserver.NewLogger(&j, mcpconfig.Logging{Level: "DEBUG", Format: "json"})
	p := openLogged(t, configOf("journal"), startServer(t).dial, log)
	a := join(t, p).named("me")
	a.send("roadmap", "the text of a message")
	a.call("read_messages", map[string]any{"channel": "nowhere"})
	found := map[string]bool{}
	for _, r := range j.records(t) {
		for _, key := range []string{"timestamp", "level", "component", "message"} {
			if r[key] == nil {
				t.Errorf("no %s in %v", key, r)
			}
		}
		found[fmt.Sprintf("%v %v %v %v", r["level"], r["component"], r["message"], r["tool"])] = true
		if strings.Contains(fmt.Sprint(r), "the text of a message") {
			t.Errorf("a message's text is logged: %v", r)
		}
	}
	for _, want := range []string{
		"INFO nats-connection connected to the bus <nil>", "DEBUG nats-connection message stored <nil>", "DEBUG mcp-tool tool called send_message",
		"WARN mcp-tool tool failed read_messages",
	} {
		if !found[want] {
			t.Errorf("%q is not in %v", want, found)
		}
	}
}
