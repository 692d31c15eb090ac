package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestChannelsAreResources(t *testing.T) {
	p := openProject(t, configOf("resources", planning()...), startServer(t).dial)
	a := join(t, p).named("me")
	list, err := a.session.ListResources(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var uris []string
	for _, r := range list.Resources {
		uris = append(uris, r.URI+" "+r.Title+" "+r.MIMEType)
	}
	if diff := cmp.Diff([]string{"parley://channels/implementation #implementation text/markdown", "parley://channels/planning #planning text/markdown",
		"parley://channels/review #review text/markdown"}, uris); diff != "" {
		t.Error(diff)
	}
	templates, err := a.session.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 1 || templates.ResourceTemplates[0].URITemplate != "parley://channels/{channel}" {
		t.Error(templates, err)
	}
	read := func(uri string) string {
		r, err := a.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		if err != nil {
			return "error: " + err.Error()
		}
		return timeless(r.Contents[0].Text)
	}
	if got := read("parley://channels/planning"); got != "No messages in #planning" {
		t.Error(got)
	}
	a.send("planning", "hello")
	if got := read("parley://channels/planning"); got != "Messages from #planning:\n\n[TIME] **me**: hello" {
		t.Error(got)
	}
	for _, uri := range []string{"parley://channels/nowhere", "parley://channels/", "parley://channels/planning/x", "parley://channels/..%2Fplanning", "file:///etc/passwd", "x", ""} {
		if got := read(uri); !strings.Contains(got, "not found") {
			t.Errorf("%q is %s", uri, got)
		}
	}
}

func TestSubscribersAreNotifiedOfTheirChannels(t *testing.T) {
	n := startServer(t)
	p := openProject(t, configOf("subscribed", planning()...), n.dial)
	a, b := subscriber(t, p), join(t, openProject(t, configOf("subscribed", planning()...), n.dial)).named("b")
	subscribe := func(channel string) {
		t.Helper()
		if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/" + channel}); err != nil {
			t.Fatal(err)
		}
	}
	subscribe("planning")
	subscribe("review")
	b.send("implementation", "not subscribed")
	b.send("review", "subscribed")
	if got := <-a.updated; got != "parley://channels/review" {
		t.Error(got)
	}
	if err := a.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "parley://channels/review"}); err != nil {
		t.Fatal(err)
	}
	b.send("review", "no longer subscribed")
	b.send("planning", "subscribed")
	if got := <-a.updated; got != "parley://channels/planning" {
		t.Error(got)
	}
	if err := a.session.Unsubscribe(t.Context(), &mcp.UnsubscribeParams{URI: "parley://channels/planning"}); err != nil {
		t.Fatal(err)
	}
	subscribe("planning") // the watcher has ended and is started again
	b.send("planning", "again")
	if got := <-a.updated; got != "parley://channels/planning" {
		t.Error(got)
	}
	if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/nowhere"}); err == nil {
		t.Error("a subscription to an unknown channel was accepted")
	}
}

func TestASubscriberThatDoesNotReadDoesNotBlockOthers(t *testing.T) {
	p := openProject(t, configOf("deaf-subscriber"), startServer(t).dial)
	deaf := connect(t, p).initialized()
	deaf.write(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"parley://channels/roadmap"}}`)
	deaf.readResult("1")
	a, b := subscriber(t, p), join(t, p).named("b")
	if err := a.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "parley://channels/roadmap"}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b.send("roadmap", fmt.Sprint(i))
		<-a.updated
	}
	deaf.end()
}

func TestArgumentsAreCompleted(t *testing.T) {
	p := openProject(t, configOf("completed", planning()...), startServer(t).dial)
	a := join(t, p)
	tests := []struct {
		ref         mcp.CompleteReference
		name, value string
		want        []string
	}{
		{mcp.CompleteReference{Type: "ref/resource", URI: "parley://channels/{channel}"}, "channel", "", []string{"planning", "implementation", "review"}},
		{mcp.CompleteReference{Type: "ref/resource", URI: "parley://channels/{channel}"}, "channel", "re", []string{"review"}},
		{mcp.CompleteReference{Type: "ref/prompt", Name: "worker"}, "channel", "p", []string{"planning"}},
		{mcp.CompleteReference{Type: "ref/prompt", Name: "worker"}, "task", "", nil},
		{mcp.CompleteReference{Type: "ref/prompt", Name: "nothing"}, "channel", "", nil},
	}
	for _, tt := range tests {
		r, err := a.session.Complete(t.Context(), &mcp.CompleteParams{Ref: &tt.ref, Argument: mcp.CompleteParamsArgument{Name: tt.name, Value: tt.value}})
		if err != nil || !slices.Equal(r.Completion.Values, tt.want) {
			t.Errorf("%+v: %v %v", tt, r, err)
		}
	}
}

// Section 16.
func TestWorkflowsArePrompts(t *testing.T) {
	n := startServer(t)
	a := join(t, openProject(t, configOf("prompts"), n.dial))
	other := join(t, openProject(t, configOf("other-prompts", planning()...), n.dial))
	list, err := a.session.ListPrompts(t.Context(), nil)
	if err != nil || len(list.Prompts) != 3 {
		t.Fatal(list, err)
	}
	get := func(a *agent, name string, arguments map[string]string) string {
		r, err := a.session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: name, Arguments: arguments})
		if err != nil {
			return "error: " + err.Error()
		}
		return r.Messages[0].Content.(*mcp.TextContent).Text
	}
	tests := []struct {
		who       *agent
		prompt    string
		arguments map[string]string
		want      []string
	}{
		{a, "dispatcher", nil, []string{`set_handle with the handle "dispatcher"`, `"parallel-work": Dispatching AGENT for ID`, "- **errors**: Error reporting"}},
		{a, "worker", map[string]string{"handle": "tdd-engineer-1", "task": "B2.T1"}, []string{`"tdd-engineer-1"`, "your task B2.T1", "Claimed ID - Starting implementation", `"errors"`}},
		{a, "worker", nil, []string{"Dispatching worker for ID"}},
		{a, "reporter", map[string]string{"roadmap": "PLAN.md"}, []string{`"reporter"`, `"roadmap" (limit 100)`, `"errors" (limit 50)`, "PLAN.md"}},
		{other, "worker", nil, []string{`"planning": Claimed`, "- **planning**"}},
		{other, "worker", map[string]string{"channel": "review"}, []string{`"review": Claimed`}},
		{a, "worker", map[string]string{"handle": "$1", "channel": "$2", "task": "$3"}, []string{`set_handle with the handle "$1"`, `read_messages for "$2"`, "your task $3"}},
		{a, "worker", map[string]string{"handle": "Not Valid"}, []string{"error:", "Invalid handle"}},
		{a, "worker", map[string]string{"chanel": "x"}, []string{"error:", "did you mean channel?"}},
		{a, "worker", map[string]string{"channel": "nowhere"}, []string{"error:", "roadmap, parallel-work, errors"}},
		{a, "worker", map[string]string{"task": "a\nb"}, []string{"error:", "one line"}},
		{a, "nothing", nil, []string{"error:", "unknown prompt"}},
	}
	for _, tt := range tests {
		got := get(tt.who, tt.prompt, tt.arguments)
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s %v: %q is not in:\n%s", tt.prompt, tt.arguments, want, got)
			}
		}
	}
}

// A client that sets a log level is notified of its calls.
func TestAClientCanSubscribeToTheLog(t *testing.T) {
	p := openProject(t, configOf("logged"), startServer(t).dial)
	w := connect(t, p).initialized()
	w.write(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"warning"}}`)
	w.readResult("1")
	w.write(callLine(2, "list_channels", `{}`))
	w.readResult("2")
	w.write(callLine(3, "read_messages", `{}`))
	if line := string(w.readLine()); !strings.Contains(line, "notifications/message") || !strings.Contains(line, "read_messages failed") {
		t.Error(line)
	}
	w.readResult("3")
	w.end()
}
