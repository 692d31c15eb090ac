//go:build unix

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
	mcpconfig "github.com/parleyhub/parley/internal/mcp/config"
)

// A person lists, reads and follows the channels of the current project, and posts in them; the hub records an event
// of each message, without its text.
func TestAPersonUsesTheProjectsChannels(t *testing.T) {
	dir := project(t)
	if err := os.WriteFile(filepath.Join(dir, mcpconfig.ProjectFile), []byte(`{"namespace":"shop","channels":[{"name":"plans","description":"What comes next"},{"name":"errors","description":"What broke"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newHub(t)
	want(t, p.run(t, "channels"), 0, "Usage:")
	want(t, p.run(t, "channels", "list"), 0, "What comes next")
	if o := p.run(t, "channels", "read", "plans"); o.code != 0 || o.stdout != "" || !strings.Contains(o.stderr, "The channel plans is empty.") {
		t.Errorf("%+v", o)
	}
	want(t, p.run(t, "channels", "post", "plans", "the first plan"), 0, "Posted in plans as ")
	out, signals, done := p.background(t, "the first plan", "channels", "read", "-f", "plans")
	<-out.seen
	posted := decode[struct {
		Channel, Handle string
		Timestamp       time.Time
		Sequence        uint64
	}](t, p.runWith(t, strings.NewReader("red \x1b[31malert\nand more\n"), nil, "--format", "json", "channels", "post", "plans", "-"))
	if posted.Channel != "plans" || posted.Handle == "" || posted.Timestamp.IsZero() || posted.Sequence != 2 {
		t.Errorf("%+v", posted)
	}
	wait.Eventually(t, "the second message is printed", func() bool { return strings.Contains(out.String(), "    and more\n") })
	signals <- os.Interrupt
	if code := <-done; code != 0 || strings.Count(out.String(), "the first plan") != 1 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("exit %d: %q", code, out.String())
	}
	o := p.run(t, "--format", "json", "channels", "read", "plans", "-n", "1")
	message := decode[struct {
		Channel, Handle, Message string
		Sequence                 uint64
	}](t, o)
	if message.Channel != "plans" || message.Handle != posted.Handle || message.Message != "red \x1b[31malert\nand more" || message.Sequence != 2 {
		t.Errorf("%+v", message)
	}
	var listed []struct {
		Name     string
		Messages int
		Newest   time.Time
	}
	if err := json.Unmarshal([]byte(p.run(t, "--format", "json", "channels", "list").stdout), &listed); err != nil || len(listed) != 2 || listed[0].Messages != 2 || listed[0].Newest.IsZero() || listed[1].Messages != 0 {
		t.Errorf("%+v, %v", listed, err)
	}
	var seen string
	wait.Eventually(t, "both messages are events", func() bool {
		seen = p.run(t, "--format", "json", "events", "--channel", "plans", "--kind", "channel").stdout
		return strings.Count(seen, `"kind":"channel.message"`) == 2
	})
	if strings.Contains(seen, "alert") || strings.Contains(seen, "first plan") || !strings.Contains(seen, `"project":"shop"`) {
		t.Errorf("the events are %s", seen)
	}
}

// REQ-REL-003: the streams that the commands create have as many copies as is configured, or the server says why not.
func TestTheCommandsOfChannelsMakeTheConfiguredCopies(t *testing.T) {
	dir := project(t)
	if err := os.WriteFile(filepath.Join(dir, mcpconfig.ProjectFile), []byte(`{"namespace":"shop","channels":[{"name":"plans","description":"What comes next"}],"crossComputer":{"replicas":2}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newHub(t)
	o := p.run(t, "channels", "post", "plans", "x")
	if o.code == 0 || !strings.Contains(o.stderr, `2 copies of the channel "plans"`) || !strings.Contains(o.stderr, "crossComputer.replicas") {
		t.Errorf("a server of its own makes two copies: %+v", o)
	}
}

func TestChannelsReportWhatIsWrong(t *testing.T) {
	project(t)
	p := newHub(t)
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{4, "parley channels list", []string{"read", "nope"}},
		{4, "parley channels list", []string{"post", "nope", "x"}},
		{2, "--limit", []string{"read", "roadmap", "-n", "0"}},
		{2, "", []string{"post", "roadmap"}},
		{2, "", []string{"post", "roadmap", ""}},
	} {
		o := p.run(t, append([]string{"channels"}, tt.args...)...)
		if o.code != tt.code || !strings.Contains(o.stderr, tt.want) || o.stdout != "" {
			t.Errorf("channels %q: %+v", tt.args, o)
		}
	}
	if names := p.completions(t, "channels", "read", ""); len(names) == 0 || names[0] != "roadmap" {
		t.Errorf("completed %q", names)
	}
}
