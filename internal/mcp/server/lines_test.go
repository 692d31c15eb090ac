package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/bus"
	mcpserver "github.com/parleyhub/parley/internal/mcp/server"
)

// A client may write all requests at once: each is answered, the tools run in their
// order, and the end of the input ends the server.
func TestRequestsWrittenAtOnceAreAllAnswered(t *testing.T) {
	p := openProject(t, configOf("script"), startServer(t).dial)
	w := connect(t, p)
	w.write(initialize,
		callLine(1, "set_handle", `{"handle":"script"}`),
		callLine(2, "send_message", `{"channel":"roadmap","message":"one"}`),
		callLine(3, "send_message", `{"channel":"roadmap","message":"two"}`),
		callLine(4, "read_messages", `{"channel":"roadmap"}`),
	)
	w.in.Write([]byte(callLine(5, "get_my_handle", `{}`))) // without a newline
	rest := make(chan string)
	go func() { rest <- w.end() }()
	answers := map[string]string{}
	for line := range strings.Lines(<-rest) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		answers[string(a.ID)] = timeless(string(a.Result))
	}
	for id, want := range map[string]string{
		"0": "serverInfo", "1": "Handle set to: script", "2": "Message sent to #roadmap by script", "5": "Your handle is: script",
		"4": `[TIME] **script**: one\n[TIME] **script**: two`,
	} {
		if !strings.Contains(answers[id], want) {
			t.Errorf("answer %s is %s", id, answers[id])
		}
	}
}

// REQ-ERROR-006: no line ends the connection.
func TestBrokenInputIsAnsweredAndSkipped(t *testing.T) {
	p := openProject(t, configOf("broken"), startServer(t).dial)
	w := connect(t, p).initialized()
	tests := []struct {
		name, line string
		code       int
		says       string
	}{
		{"not JSON", `nonsense`, -32700, "not JSON"},
		{"half", `{"jsonrpc":"2.0","id":1,`, -32700, "not JSON"},
		{"not UTF-8 outside of strings", "\xff\xfe", -32700, "not JSON"},
		{"number", `7`, -32600, "JSON-RPC"},
		{"null", `null`, -32600, "JSON-RPC"},
		{"string", `"x"`, -32600, "JSON-RPC"},
		{"empty object", `{}`, -32600, "version"},
		{"other version", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, -32600, "version"},
		{"no method", `{"jsonrpc":"2.0"}`, -32600, "JSON-RPC"},
		{"method of another type", `{"jsonrpc":"2.0","id":1,"method":7}`, -32600, "JSON-RPC"},
		{"object as id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600, "JSON-RPC"},
		{"fraction as id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, -32600, "id"},
		{"huge id", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, -32600, "id"},
		{"empty batch", `[]`, -32600, "batch"},
		{"huge batch", `[` + strings.Repeat(`1,`, 100) + `1]`, -32600, "batch"},
		{"long line without an id", `{"jsonrpc":"2.0","method":"ping","x":"` + strings.Repeat("x", 8<<20) + `"}`, -32600, "longer than 8 MiB"},
		{"long answer", `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 8<<20) + `"}`, -32600, "longer than 8 MiB"},
		{"long line, cut", `{"jsonrpc":"2.0","id":1,"method":"ping","x":"` + strings.Repeat("x", 8<<20), -32600, "longer than 8 MiB"},
		{"long line with an id inside", `{"method":"ping","params":{"id":1,"x":"` + strings.Repeat("x", 8<<20) + `"}}`, -32600, "longer than 8 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			go w.write(tt.line, `{"jsonrpc":"2.0","id":"after","method":"ping"}`)
			if a := w.readAnswer(); string(a.ID) != "null" || a.Error == nil || a.Error.Code != tt.code || !strings.Contains(a.Error.Message, tt.says) {
				t.Errorf("got %+v %+v", a, a.Error)
			}
			w.readResult(`"after"`)
		})
	}
	// The request of a line that is too long gets the answer, wherever its id is, also in a text that looks like one.
	long := strings.Repeat(`\"id\":7,{[`, 1<<20)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":"l\"1","method":"tools/call","params":{"x":"` + long + `"}}`,
		`{"method":"tools/call","params":{"id":3,"x":["` + long + `"]},"jsonrpc":"2.0","id":"l\"1"}`,
		` { "method" : "tools/call" , "id" : "l\"1" , "params" : {"x":"` + long + `"} } `,
	} {
		go w.write(line, `{"jsonrpc":"2.0","id":"after","method":"ping"}`)
		if a := w.readAnswer(); string(a.ID) != `"l\"1"` || a.Error == nil || a.Error.Code != -32600 || !strings.Contains(a.Error.Message, "longer than 8 MiB") {
			t.Errorf("a long request: got %s %+v", a.ID, a.Error)
		}
		w.readResult(`"after"`)
	}
	for _, line := range []string{"", "   ", "\r", `{"jsonrpc":"2.0","method":"notifications/unknown"}`, `{"jsonrpc":"2.0","id":99,"result":{}}`} {
		w.write(line) // is not answered
	}
	w.write(`{"jsonrpc":"2.0","id":1,"method":"no/such/method"}`)
	if a := w.readAnswer(); string(a.ID) != "1" || a.Error == nil || a.Error.Code != -32601 {
		t.Errorf("an unknown method: %+v", a)
	}
	w.write(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"nothing"}}`)
	if a := w.readAnswer(); string(a.ID) != "2" || a.Error == nil || a.Error.Code != -32602 {
		t.Errorf("an unknown tool: %+v", a)
	}
	w.write(`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"\u0001\u007f"}}`)
	if a := w.readAnswer(); string(a.ID) != "3" || a.Error == nil || a.Error.Code != -32602 {
		t.Errorf("a missing resource: %+v %+v", a, a.Error)
	}
	if rest := w.end(); rest != "" {
		t.Errorf("unexpected further lines: %s", rest)
	}
}

func TestABatchHasOneAnswer(t *testing.T) {
	p := openProject(t, configOf("batch"), startServer(t).dial)
	w := connect(t, p).initialized()
	w.write(`[` + callLine(1, "set_handle", `{"handle":"me"}`) + `,{"jsonrpc":"2.0","method":"notifications/initialized"},7,` +
		callLine(2, "get_my_handle", `{}`) + `,{"jsonrpc":"2.0","id":3,"method":"ping"}]`)
	var answers []answer
	if err := json.Unmarshal(w.readLine(), &answers); err != nil || len(answers) != 4 {
		t.Fatal(err, answers)
	}
	got := map[string]bool{}
	for _, a := range answers {
		got[string(a.ID)] = a.Error == nil
		if string(a.ID) == "2" && !strings.Contains(string(a.Result), "Your handle is: me") {
			t.Errorf("%s", a.Result)
		}
	}
	if want := fmt.Sprint(map[string]bool{"1": true, "2": true, "3": true, "null": false}); fmt.Sprint(got) != want {
		t.Errorf("got %v", got)
	}
	w.end()
}

// Later calls run while one waits. An id in use cannot be used by another request.
func TestAWaitingCallDoesNotBlockOthers(t *testing.T) {
	p := openProject(t, configOf("passing"), startServer(t).dial)
	w := connect(t, p).initialized()
	w.write(callLine(1, "set_handle", `{"handle":"me"}`))
	w.readResult("1")
	w.write(callLine(2, "wait_for_messages", `{}`), callLine(2, "get_my_handle", `{}`), callLine(3, "get_my_handle", `{}`))
	if a := w.readAnswer(); string(a.ID) != "null" || !strings.Contains(a.Error.Message, "pending request") {
		t.Errorf("an id in use: %+v", a)
	}
	w.readResult("3")
	join(t, p).named("other").send("roadmap", "wake up")
	if got := string(w.readResult("2")); !strings.Contains(got, "wake up") {
		t.Error(got)
	}
	w.end()
}

// holding is a writer that blocks after it has written the answer with an id.
type holding struct {
	io.Writer
	id      string
	proceed chan struct{}
}

func (w holding) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if bytes.Contains(p, []byte(`"id":`+w.id)) {
		<-w.proceed
	}
	return n, err
}

// A client may use an id again as soon as it has read the answer, even if the server's
// write has not returned.
func TestAnIDCanBeUsedAgainAfterItsAnswerIsRead(t *testing.T) {
	p := openProject(t, configOf("again"), startServer(t).dial)
	proceed := make(chan struct{})
	w := connectThrough(t, p, func(out io.Writer) io.Writer { return holding{out, "7", proceed} }).initialized()
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	w.write(ping)
	w.readResult("7")
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		w.write(ping)
		w.write("") // is read after the previous request is queued
	}()
	select {
	case <-taken:
	case <-time.After(30 * time.Second):
		t.Error("the request is not read")
	}
	close(proceed)
	<-taken
	w.readResult("7")
	if rest := w.end(); rest != "" {
		t.Errorf("unexpected further lines: %s", rest)
	}
}

func TestRunningAndQueuedCallsAreCanceled(t *testing.T) {
	p := openProject(t, configOf("cancelled"), startServer(t).dial)
	w := connect(t, p).initialized()
	w.write(callLine(1, "wait_for_messages", `{}`), `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	w.readResult("2")
	w.write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`)
	if a := w.readAnswer(); string(a.ID) != "1" {
		t.Errorf("got %+v", a)
	}
	w.write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":7}`, `{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	w.readResult("3")
	if rest := w.end(); rest != "" {
		t.Errorf("unexpected further lines: %s", rest)
	}
}

// REQ-REL-008: the server ends when its client disconnects during a waiting call.
func TestTheServerEndsWhenAWaitingClientDisconnects(t *testing.T) {
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			p := openProject(t, configOf("vanished"), startServer(t).dial)
			w := connect(t, p)
			if revision == "2025-11-25" {
				w.initialized()
				w.write(callLine(1, "wait_for_messages", `{}`))
			} else {
				w.write(strings.Replace(callLine(1, "wait_for_messages", `{}`), `"params":{`, `"params":{`+meta2026+`,`, 1),
					`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{`+meta2026+`,"notifications":{"resourceSubscriptions":["parley://channels/roadmap"]}}}`)
				if line := string(w.readLine()); !strings.Contains(line, "acknowledged") {
					t.Fatal(line)
				}
			}
			if rest := w.end(); !strings.Contains(rest, "interrupted") {
				t.Errorf("the waiting call was answered with %s", rest)
			}
		})
	}
}

const meta2026 = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`

// The revisions without sessions need no handshake on standard input; the session is
// the connection.
func TestTheRevisionWithoutSessionsOverLines(t *testing.T) {
	p := openProject(t, configOf("later"), startServer(t).dial)
	w := connect(t, p)
	call := func(id int, tool, arguments string) string {
		w.write(strings.Replace(callLine(id, tool, arguments), `"params":{`, `"params":{`+meta2026+`,`, 1))
		return string(w.readResult(fmt.Sprint(id)))
	}
	call(1, "set_handle", `{"handle":"later"}`)
	if got := call(2, "get_my_handle", `{}`); !strings.Contains(got, "Your handle is: later") || strings.Contains(got, "session") {
		t.Error(got)
	}
	w.end()
}

// REQ-REL-008: SIGTERM ends the context, and then the server, even if the client does
// not read its answers.
func TestTheServerEndsEvenIfTheClientDoesNotRead(t *testing.T) {
	p := openProject(t, configOf("deaf"), startServer(t).dial)
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- p.ServeLines(ctx, mcpserver.Caller{}, toServer, fromServer) }()
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		io.WriteString(in, initialize+"\n") //nolint:errcheck // the server closes its end
		for i := range 10_000 {
			if _, err := io.WriteString(in, fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"tools/list"}`+"\n", i)); err != nil {
				return
			}
		}
	}()
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	out.Close()
	in.Close()
	<-flooded
}

// hostileLine returns a request as an attacker or a faulty client sends it.
func hostileLine(rng *rand.Rand, id int) string {
	pick := func(all ...string) string { return all[rng.IntN(len(all))] }
	value := func() string {
		return pick(`"planning"`, `""`, `null`, `7`, `-1`, `1e999`, `[]`, `[[[[]]]]`, `{}`, `true`, `"../../etc/passwd"`, `"a.b"`, `"*"`, `">"`, `"$JS.API.INFO"`,
			`"\u0000"`, `"\ud800"`, `"`+strings.Repeat("x", rng.IntN(2000))+`"`, strings.Repeat("[", 500)+strings.Repeat("]", 500), `{"__proto__":{}}`)
	}
	method := pick("tools/call", "tools/call", "tools/call", "tools/list", "resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get",
		"completion/complete", "logging/setLevel", "ping", "initialize", "notifications/initialized", "server/discover", "subscriptions/listen", "no/such", "")
	tool := pick("set_handle", "get_my_handle", "send_message", "read_messages", "list_channels", "nothing", "")
	params := pick(
		fmt.Sprintf(`{"name":%q,"arguments":{%q:%s,%q:%s}}`, tool, pick("channel", "handle", "message", "limit", "session", "x"), value(), pick("channel", "message", "limit"), value()),
		fmt.Sprintf(`{"name":%s,"arguments":%s}`, value(), value()), fmt.Sprintf(`{"uri":%s}`, value()), fmt.Sprintf(`{"name":%s,"arguments":%s}`, pick(`"worker"`, value()), value()),
		fmt.Sprintf(`{"ref":%s,"argument":%s}`, pick(`{"type":"ref/prompt","name":"worker"}`, value()), pick(`{"name":"channel","value":"r"}`, value())),
		fmt.Sprintf(`{"level":%s}`, value()), fmt.Sprintf(`{"_meta":%s}`, value()), fmt.Sprintf(`{%s,"notifications":%s}`, meta2026, value()), value(), value())
	if method == "subscriptions/listen" && strings.Contains(params, "notifications") {
		params = value() // a valid one would wait
	}
	line := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, pick(fmt.Sprint(id), fmt.Sprint(id), fmt.Sprint(id), `null`, `"x"`, `[]`, `1.5`), method, params)
	switch rng.IntN(20) {
	case 0:
		cut := rng.IntN(len(line))
		line = line[:cut]
	case 1:
		b := []byte(line)
		b[rng.IntN(len(b))] = byte(rng.IntN(256))
		line = string(b)
	case 2:
		line = "[" + line + "," + line + "]"
	}
	return strings.ReplaceAll(line, "\n", " ")
}

// Sends 10,000 hostile requests: each answer must be JSON-RPC, and the server must work
// afterwards.
func TestTheServerWithstandsHostileRequests(t *testing.T) {
	p := openProject(t, configOf("hostile", planning()...), startServer(t).dial)
	w := connect(t, p).initialized()
	const attacks = 10_000
	written := make(chan struct{})
	go func() {
		defer close(written)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range attacks {
			w.write(hostileLine(rng, i+10))
		}
		w.write(callLine(1, "set_handle", `{"handle":"me"}`), callLine(2, "send_message", `{"channel":"planning","message":"still here"}`),
			callLine(3, "read_messages", `{"channel":"planning","limit":1}`))
	}()
	for {
		line, err := w.out.ReadBytes('\n')
		if err != nil {
			t.Fatalf("the connection ended: %v (%v)", err, <-w.served)
		}
		if line[0] == '[' {
			if !json.Valid(line) {
				t.Fatalf("%s", line)
			}
			continue
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("%v: %.300s", err, line)
		}
		if a.Error != nil && (a.Error.Code == 0 || strings.Contains(a.Error.Message, "internal")) {
			t.Errorf("%.300s", line)
		}
		if string(a.ID) == "3" {
			if !strings.Contains(string(a.Result), "still here") {
				t.Errorf("%s", line)
			}
			break
		}
	}
	<-written
	w.end()
}

// FuzzLines checks that no line ends the connection and that each answer is JSON.
func FuzzLines(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 50 {
		f.Add([]byte(hostileLine(rng, i)))
	}
	f.Add([]byte(initialize))
	f.Add([]byte(callLine(1, "wait_for_messages", `{"timeout_seconds":1}`)))
	for i, arguments := range []string{`{}`, `null`, `[]`, `{"channel":"roadmap","message":"x","limit":1}`, `{"handle":"a","session":"b"}`} {
		for _, tool := range []string{"set_handle", "send_message", "read_messages"} {
			f.Add([]byte(callLine(i, tool, arguments)))
		}
	}
	service := openProject(f, configOf("fuzz"), func(context.Context) (*bus.Bus, error) { return nil, errors.New("there is no bus") })
	f.Fuzz(func(t *testing.T, line []byte) {
		toServer, in := io.Pipe()
		out, fromServer := io.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- service.ServeLines(context.Background(), mcpserver.Caller{}, toServer, fromServer)
			fromServer.Close()
		}()
		go func() {
			io.WriteString(in, initialize+"\n")     //nolint:errcheck // the answers show errors
			in.Write(append(bytes.Clone(line), 10)) //nolint:errcheck // the same
			in.Close()
		}()
		all, err := io.ReadAll(out)
		if err != nil {
			t.Fatal(err)
		}
		for answer := range strings.Lines(string(all)) {
			if !json.Valid([]byte(answer)) {
				t.Fatalf("%q was answered with %q", line, answer)
			}
		}
		if err := <-served; err != nil {
			t.Fatalf("%q ended the connection: %v", line, err)
		}
	})
}

// REQ-REL-008: the server ends when a client of 2026-07-28 that listens disconnects.
func TestTheEndOfInputEndsSubscriptions(t *testing.T) {
	w := connect(t, openProject(t, configOf("listen", planning()...), startServer(t).dial))
	w.write(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["parley://channels/planning"]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if line := w.readLine(); !strings.Contains(string(line), "acknowledged") {
		t.Fatalf("%s", line)
	}
	w.end() // blocks if the server does not end
}
