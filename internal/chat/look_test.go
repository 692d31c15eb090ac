package chat_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/chat"
)

// A person looks at a channel without a trace, and posts in it without changing it.
func TestAPersonLooksAndPosts(t *testing.T) {
	n := startServer(t)
	cfg := n.config("p")
	b, err := cfg.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close(t.Context()) }()
	if _, _, err := chat.Look(t.Context(), b, "p", "roadmap", 3); err == nil {
		t.Error("a channel that nobody has used was looked at")
	}
	if err := chat.Post(t.Context(), b, "p", "roadmap", "ada", "hello", time.Now()); err == nil {
		t.Error("posted in a channel that nobody has used")
	}
	s := ready(t, open(t, cfg))
	for i := range 5 {
		send(t, s, "pm", "roadmap", fmt.Sprint(i))
	}
	if err := chat.Post(t.Context(), b, "p", "roadmap", "ada", "hello", time.Now()); err != nil {
		t.Fatal(err)
	}
	messages, more, err := chat.Look(t.Context(), b, "p", "roadmap", 3)
	if err != nil || !more || len(messages) != 3 || messages[0].Text != "3" || messages[2].Text != "hello" || messages[2].Handle != "ada" || messages[2].Sequence != 6 {
		t.Errorf("%+v, %t, %v", messages, more, err)
	}
	if all, more, err := chat.Look(t.Context(), b, "p", "roadmap", 100); err != nil || more || len(all) != 6 {
		t.Errorf("%d messages, %t, %v", len(all), more, err)
	}
	stream, err := n.Foreign().Stream(t.Context(), "p_ROADMAP")
	if err != nil {
		t.Fatal(err)
	}
	if consumers := stream.CachedInfo().State.Consumers; consumers != 0 {
		t.Errorf("looking has left %d consumers", consumers)
	}
	if namespace, channel, ok := chat.ChannelOf(stream.CachedInfo().Config.Metadata); namespace != "p" || channel != "roadmap" || !ok {
		t.Errorf("the stream is of %q %q, %t", namespace, channel, ok)
	}
	for _, wrong := range [][2]string{{"No Handle", "x"}, {"ada", ""}, {"ada", strings.Repeat("x", chat.MaxMessage+1)}} {
		if err := chat.Post(t.Context(), b, "p", "roadmap", wrong[0], wrong[1], time.Now()); chat.CodeOf(err) != chat.ValidationError {
			t.Errorf("%.20q: %v", wrong, err)
		}
	}
}

func TestConsumersNameTheirReaders(t *testing.T) {
	for consumer, want := range map[string]string{"read-project-manager-abcd1234": "project-manager", "read-a-b": "a", "read-a": "", "other-a-b": "", "read-": ""} {
		if got, ok := chat.ReaderOf(consumer); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t", consumer, got, ok)
		}
	}
}
