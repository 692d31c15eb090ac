package server_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
	"github.com/parleyhub/parley/internal/api/server"
	"github.com/parleyhub/parley/internal/base/wait"
)

// hostile returns one malformed or hostile message, on one line.
func hostile(rng *rand.Rand) string {
	valid := []string{
		rpc(rng.IntN(100), "message/send", sendParams("hello")),
		rpc(rng.IntN(100), "message/stream", sendParams("chunks 3")),
		rpc(rng.IntN(100), "tasks/get", `{"id":"nothing"}`),
		rpc(rng.IntN(100), "hub/tasks/list", `{"limit":20,"state":"completed"}`),
		rpc(rng.IntN(100), "hub/agents/health", `{"agentId":"echo"}`),
		`[` + rpc(1, "hub/status", `{}`) + `,` + rpc(2, "nope", `[]`) + `]`,
	}
	text := []byte(valid[rng.IntN(len(valid))])
	switch rng.IntN(14) {
	case 0: // some bytes changed
		for range 1 + rng.IntN(8) {
			text[rng.IntN(len(text))] = byte(rng.IntN(256))
		}
	case 1: // truncated
		text = text[:rng.IntN(len(text))]
	case 2: // broken UTF-8 within a string
		text = bytes.Replace(text, []byte("o"), []byte{0xc3, 0x28}, 1)
	case 3: // random bytes
		text = make([]byte, rng.IntN(2000))
		for i := range text {
			text[i] = byte(rng.IntN(256))
		}
	case 4: // deeply nested
		text = []byte(strings.Repeat([]string{"[", `{"a":`, `[{"a":[`}[rng.IntN(3)], 1+rng.IntN(5000)))
	case 5: // wrong ids
		text = fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"hub/status","id":%s}`,
			[]string{`{}`, `[1]`, `true`, `"` + strings.Repeat("i", 5000) + `"`, `1e999`, `-0`, `1.0000000000000000001`, `""`, `null`}[rng.IntN(9)])
	case 6: // wrong parameters
		text = []byte(rpc(rng.IntN(100), []string{"message/send", "tasks/get", "hub/tasks/list", "hub/agents/get"}[rng.IntN(4)],
			[]string{`[]`, `{"id":{}}`, `{"message":[]}`, `{"limit":-1}`, `{"agentId":"../../etc/passwd"}`, `{"message":{"parts":null}}`, `"x"`, `{"id":"` + strings.Repeat("z", 300) + `"}`}[rng.IntN(8)]))
	case 7: // duplicate members
		text = bytes.Replace(text, []byte(`"jsonrpc":"2.0"`), []byte(`"jsonrpc":"2.0","jsonrpc":"2.0"`), 1)
	case 8: // too long
		text = append(append(text[:len(text)-1], bytes.Repeat([]byte(" "), 40_000)...), text[len(text)-1])
	case 9: // a large batch of invalid requests
		text = []byte("[" + strings.Repeat("1,", rng.IntN(200)) + "1]")
	case 10: // another protocol
		text = []byte([]string{"GET / HTTP/1.1", "\x16\x03\x01\x02\x00\x01", "EHLO x", "*1\r$4\rPING", "<xml/>", "null", "0", `""`, "\x00"}[rng.IntN(9)])
	case 11: // invalid escapes and control characters
		text = bytes.Replace(text, []byte(`"hello"`), []byte([]string{`"\ud800"`, `"\u0000"`, `"\x"`, "\"\x01\"", `"\u12"`}[rng.IntN(5)]), 1)
	case 12: // invalid numbers
		text = bytes.Replace(text, []byte(`20`), []byte([]string{"1e400", "-1", "0x10", "01", "1e", "99999999999999999999", "20.0"}[rng.IntN(7)]), 1)
	default: // valid
	}
	return string(bytes.ReplaceAll(text, []byte("\n"), []byte(" ")))
}

// correct returns an error unless text is a JSON-RPC response with an id and a code of
// the specification, or an array of such responses.
func correct(text []byte) error {
	var answers []json.RawMessage
	if len(text) > 0 && text[0] == '[' {
		if err := json.Unmarshal(text, &answers); err != nil || len(answers) == 0 {
			return fmt.Errorf("not a batch: %.200q (%v)", text, err)
		}
	} else {
		answers = []json.RawMessage{text}
	}
	for _, answer := range answers {
		var response struct {
			JSONRPC string
			ID      json.RawMessage
			Result  json.RawMessage
			Error   *jsonrpc.Error
		}
		if err := json.Unmarshal(answer, &response); err != nil {
			return fmt.Errorf("not a response: %.200q (%v)", answer, err)
		}
		known := []int{-32700, -32600, -32601, -32602, -32001, -32003, -32005}
		switch {
		case response.JSONRPC != "2.0" || len(response.ID) == 0:
			return fmt.Errorf("not a response: %.200q", answer)
		case (response.Error == nil) == (response.Result == nil):
			return fmt.Errorf("neither or both of result and error: %.200q", answer)
		case response.Error != nil && (!slices.Contains(known, response.Error.Code) || response.Error.Details().Code == ""):
			return fmt.Errorf("unexpected error: %.200q", answer)
		}
	}
	return nil
}

const attacks = 10_000

// Sends 10,000 hostile messages over the socket: each must get a correct answer, and no
// goroutine or descriptor may leak.
func TestSocketWithstandsHostileRequests(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 32_000}))
	const connections = 8
	before, goroutines := openFiles(t), runtime.NumGoroutine()
	var wg sync.WaitGroup
	for n := range connections {
		c := r.dial(t)
		wg.Go(func() {
			defer c.close()
			if err := attackSocket(c, rand.New(rand.NewPCG(1, uint64(n))), attacks/connections); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	settle(t, before)
	settleGoroutines(t, goroutines)
	c := r.dial(t)
	c.write(rpc(1, "hub/status", `{}`))
	want(t, c.read(), "1 ok")
}

// attackSocket sends n hostile messages, each followed by a probe, and reads until the
// probe is answered. The messages' own answers may arrive before or after the probe's;
// at the end there must be one for each message that needs an answer.
func attackSocket(c *lineClient, rng *rand.Rand, n int) error {
	expected := 0
	for i := range n {
		text := hostile(rng)
		if asks(text) {
			expected++
		}
		probe := fmt.Sprintf("probe-%d", i)
		if _, err := io.WriteString(c.conn, text+"\n"+`{"jsonrpc":"2.0","method":"hub/agents/list","id":"`+probe+`"}`+"\n"); err != nil {
			return err
		}
		for {
			line, err := c.r.ReadBytes('\n')
			if err != nil {
				return fmt.Errorf("after %.200q: %w", text, err)
			}
			if bytes.Contains(line, []byte(`"method":"stream/event"`)) {
				continue
			}
			if err := correct(bytes.TrimSpace(line)); err != nil {
				return fmt.Errorf("after %.200q: %w", text, err)
			}
			if bytes.HasSuffix(line, []byte(`"id":"`+probe+"\"}\n")) {
				break
			}
			expected--
		}
	}
	if err := c.conn.CloseWrite(); err != nil {
		return err
	}
	rest, err := io.ReadAll(c.r)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(rest) {
		if !bytes.Contains(line, []byte(`"method":"stream/event"`)) {
			expected--
		}
	}
	if expected != 0 {
		return fmt.Errorf("%d answers are missing", expected)
	}
	return nil
}

// asks reports whether a line needs an answer: all but blank lines and valid
// notifications do.
func asks(text string) bool {
	if strings.TrimSpace(text) == "" {
		return false
	}
	if len(strings.TrimRight(text, "\r\n")) > 32_000 {
		return true
	}
	for _, call := range jsonrpc.Decode([]byte(text), jsonrpc.Limits{}).Calls {
		if call.Err != nil || !call.Request.IsNotification() {
			return true
		}
	}
	return false
}

// Sends hostile messages over HTTP, among them too large bodies and requests of clients
// that disconnect.
func TestHTTPWithstandsHostileRequests(t *testing.T) {
	r := start(t, limits(server.Limits{Message: 32_000, ReadTimeout: 2 * time.Second}))
	const clients = 8
	before, goroutines := openFiles(t), runtime.NumGoroutine()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(n)))
			for range attacks / clients {
				if err := attackHTTP(r, client, rng); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	transport.CloseIdleConnections()
	settle(t, before)
	settleGoroutines(t, goroutines)
	want(t, r.post(t, "/", rpc(1, "hub/status", `{}`)).body, "1 ok")
}

func attackHTTP(r *rig, client *http.Client, rng *rand.Rand) error {
	text := hostile(rng)
	if rng.IntN(50) == 0 {
		return halfARequest(r, text)
	}
	req, err := http.NewRequest([]string{"POST", "POST", "POST", "PUT"}[rng.IntN(4)], r.url+[]string{"/", "/", "/stream", "/nope"}[rng.IntN(4)], strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", []string{"application/json", "application/json", "application/json", "text/html"}[rng.IntN(4)])
	if rng.IntN(10) == 0 {
		req.Header.Set("Origin", "https://evil.example")
	}
	if rng.IntN(10) == 0 {
		req.ContentLength = -1 // chunked
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%.200q: %w", text, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("%.200q: %w", text, err)
	}
	switch {
	case resp.StatusCode == http.StatusNoContent:
		if len(body) > 0 || asks(text) {
			return fmt.Errorf("%.200q got no answer", text)
		}
		return nil
	case !slices.Contains([]int{200, 403, 404, 405, 413, 415}, resp.StatusCode):
		return fmt.Errorf("%.200q got status %d", text, resp.StatusCode)
	case resp.Header.Get("Content-Type") == "text/event-stream":
		for frame := range strings.SplitSeq(strings.TrimSpace(string(body)), "\n\n") {
			if err := correct([]byte(strings.TrimPrefix(frame, "data: "))); err != nil {
				return err
			}
		}
		return nil
	default:
		return correct(body)
	}
}

// halfARequest disconnects before it has sent the Content-Length that it announced.
func halfARequest(r *rig, text string) error {
	conn, err := net.Dial("tcp", r.Addr().String())
	if err != nil {
		return err
	}
	head := "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(text)+100) + "\r\n\r\n"
	w := bufio.NewWriter(conn)
	_, err = w.WriteString(head + text)
	if err == nil {
		err = w.Flush()
	}
	if closeErr := conn.Close(); err == nil {
		err = closeErr
	}
	return err
}

// settleGoroutines waits until at most before goroutines run.
func settleGoroutines(t *testing.T, before int) {
	t.Helper()
	wait.Eventually(t, fmt.Sprintf("at most %d goroutines run", before), func() bool { return runtime.NumGoroutine() <= before })
}
