package parley_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhub/parley"
	"github.com/parleyhub/parley/agent"
	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/envelope"
	"github.com/parleyhub/parley/internal/base/wait"
	"github.com/parleyhub/parley/transport"
	"github.com/parleyhub/parley/transport/websocket"
)

// talkCommand as first argument makes the test binary run as an agent that exchanges messages over WebSocket with an
// agent of another process.
const talkCommand = "talk"

func talkProcess(ctx context.Context, t *testing.T, token string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, append([]string{talkCommand}, args...)...)
	cmd.Env = append(os.Environ(), "TALK_TOKEN="+token, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func TestTwoProcessesTalk(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	venus := talkProcess(ctx, t, "a secret", "-as", "venus", "-listen", "127.0.0.1:0")
	out, err := venus.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := venus.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = venus.Wait() // it was killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimSpace(strings.TrimPrefix(line, "listening at "))

	got, err := talkProcess(ctx, t, "a secret", "-as", "mars", "-to", "venus", "-at", at, "hello", "how are you?").CombinedOutput()
	if want := "venus answers: HELLO\nvenus answers: HOW ARE YOU?\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	got, err = talkProcess(ctx, t, "wrong", "-as", "io", "-to", "venus", "-at", at, "hello").CombinedOutput()
	if err == nil || strings.Contains(string(got), "answers") || strings.Contains(string(got), "a secret") {
		t.Errorf("with the wrong token: %q, %v", got, err)
	}
}

// counting counts the connections that its dialer makes.
type counting struct {
	transport.Dialer
	made atomic.Int32
}

func (d *counting) Dial(ctx context.Context, to agent.Endpoint) (transport.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, to)
	if err == nil {
		d.made.Add(1)
	}
	return conn, err
}

// Req 3.7: a peer's process that is killed and starts again may listen before its agent has joined. The channel waits
// for the agent, and delivers what was sent meanwhile.
func TestAnAgentThatRejoinsLateIsWaitedFor(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := func(address string, options ...string) (at string, join io.Writer, kill func()) {
		cmd := talkProcess(ctx, t, "a secret", append([]string{"-as", "venus", "-listen", address}, options...)...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = sync.OnceFunc(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
		t.Cleanup(kill)
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(strings.TrimPrefix(line, "listening at ")), in, kill
	}
	at, _, kill := start("127.0.0.1:0")
	dialer := &counting{Dialer: &websocket.Dialer{Token: func(context.Context, *url.URL) (string, error) { return "a secret", nil }}}
	node, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: dialer},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close(ctx)
	answers := make(chan string, 10)
	mars, err := node.Join(card("mars"), func(_ context.Context, e *envelope.Envelope) { answers <- e.Sender + string(e.Payload) })
	if err != nil {
		t.Fatal(err)
	}
	c, err := node.Connect(ctx, "mars", "venus", agent.Endpoint{Transport: agent.TransportWebSocket, Address: at})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mars.Send(ctx, "venus", envelope.Request, "hello"); err != nil {
		t.Fatal(err)
	}
	expect(t, answers, `venus"HELLO"`)
	if err := c.Flush(ctx); err != nil {
		t.Fatal(err)
	}

	kill()
	wait.Eventually(t, "the channel is reconnecting", func() bool { return c.Status() == channel.Reconnecting })
	if _, err := mars.Send(ctx, "venus", envelope.Request, "are you back?"); err != nil {
		t.Fatal(err)
	}
	before := dialer.made.Load()
	listening, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	_, join, _ := start(listening.Host, "-late")
	wait.Eventually(t, "the peer has refused twice", func() bool { return dialer.made.Load() >= before+3 || c.Status() == channel.Closed })
	if c.Status() != channel.Reconnecting {
		t.Fatalf("%s while the agent has not joined: %v", c.Status(), c.Err())
	}
	if _, err := io.WriteString(join, "\n"); err != nil {
		t.Fatal(err)
	}
	expect(t, answers, `venus"ARE YOU BACK?"`)
}

func talk() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runTalk(ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "talk:", err)
		os.Exit(1)
	}
}

func runTalk(ctx context.Context, args []string) (err error) {
	flag := flag.NewFlagSet("talk", flag.ContinueOnError)
	as := flag.String("as", "", "the agent's `id`, a planetary one")
	listen := flag.String("listen", "", "the `address` to accept channels at")
	late := flag.Bool("late", false, "listen at once, but join only after a line on standard input")
	to := flag.String("to", "", "the `id` of the agent to talk with")
	at := flag.String("at", "", "the `url` where it listens")
	if err := flag.Parse(args); err != nil {
		return err
	}
	token := os.Getenv("TALK_TOKEN") // not a flag: other users can read flags
	if token == "" {
		return errors.New("set TALK_TOKEN to the same secret in both processes")
	}

	node, err := parley.New(parley.Options{Channels: channel.Options{
		Dialers: map[agent.Transport]transport.Dialer{agent.TransportWebSocket: &websocket.Dialer{
			Token: func(context.Context, *url.URL) (string, error) { return token, nil },
		}},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(context.WithoutCancel(ctx))) }()

	if *listen != "" {
		return talkAnswer(ctx, node, *as, *listen, token, *late)
	}
	return talkAsk(ctx, node, *as, *to, *at, flag.Args())
}

// talkAnswer answers each message in upper case until ctx ends. It joins before it listens, unless it is late.
func talkAnswer(ctx context.Context, node *parley.Node, as, address, token string, late bool) error {
	listen := func() error {
		l, err := websocket.Listen(address, websocket.ListenOptions{Authenticate: websocket.Tokens(map[string]string{"friend": token})})
		if err == nil {
			err = node.Listen(l)
		}
		if err == nil {
			fmt.Println("listening at", l.Endpoint().Address)
		}
		return err
	}
	if late {
		if err := listen(); err != nil {
			return err
		}
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			return err
		}
	}
	var me *parley.Agent
	ready := make(chan struct{})
	me, err := node.Join(card(as), func(ctx context.Context, e *envelope.Envelope) {
		<-ready
		var text string
		if err := e.Unmarshal(&text); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
			return
		}
		fmt.Printf("%s says: %s\n", e.Sender, text)
		if _, err := me.Reply(ctx, e, envelope.Response, strings.ToUpper(text)); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
		}
	})
	if err != nil {
		return err
	}
	close(ready)
	if !late {
		if err := listen(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// talkAsk sends the texts and prints the answers.
func talkAsk(ctx context.Context, node *parley.Node, as, to, at string, texts []string) error {
	answers := make(chan string, len(texts))
	me, err := node.Join(card(as), func(_ context.Context, e *envelope.Envelope) {
		var text string
		if err := e.Unmarshal(&text); err != nil {
			text = err.Error()
		}
		answers <- fmt.Sprintf("%s answers: %s", e.Sender, text)
	})
	if err != nil {
		return err
	}
	if _, err := node.Connect(ctx, as, to, agent.Endpoint{Transport: agent.TransportWebSocket, Address: at}); err != nil {
		return err
	}
	for _, text := range texts {
		if _, err := me.Send(ctx, to, envelope.Request, text); err != nil {
			return err
		}
	}
	for range texts {
		select {
		case s := <-answers:
			fmt.Println(s)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
