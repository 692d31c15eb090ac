//go:build unix

package cli_test

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/base/wait"
)

var sentPattern = regexp.MustCompile(`Its id is ([0-9a-f-]{36})`)

// Readers that are killed at any moment lose no mail, and none is shown as read that they are not known to have: killed with
// the answer in their hands, before the next call, they get the mail again, marked; killed before the answer, unmarked
// or marked. REQ-TOOL-READDIRECT-003
func TestAReaderThatIsKilledLosesNoMail(t *testing.T) {
	t.Parallel()
	d := newMachine(t)
	boss, _ := d.join("boss")
	hand, guid := d.join("hand")
	const letters = 24
	ids, seen := make([]string, letters), make([]int, letters)
	status := func(i int) string { return boss.say("get_message_status", `{"messageId":%q}`, ids[i]) }
	for i := range ids {
		match := sentPattern.FindStringSubmatch(boss.say("send_direct_message", `{"recipientGuid":%q,"message":"letter %d."}`, guid, i))
		if match == nil {
			t.Fatal("a letter was not sent")
		}
		ids[i] = match[1]
	}
	note := func(answer string) (got []int) {
		t.Helper()
		for i := range ids {
			if strings.Contains(answer, fmt.Sprintf("letter %d.", i)) {
				seen[i]++
				got = append(got, i)
			}
		}
		return got
	}
	read := func() string { return hand.say("read_direct_messages", `{"limit":4}`) }
	// With the answer, before the next call.
	begin := time.Now()
	first := note(read())
	hand.crash()
	early := time.Since(begin) < mail.AcknowledgeAfter // else its life has acknowledged the answer
	st := status(0)
	if early && strings.Contains(st, "is read") {
		t.Errorf("after the kill: %s", st)
	}
	hand, _ = d.join("hand")
	answer := read()
	if got := note(answer); early && (len(first) != 4 || fmt.Sprint(got) != fmt.Sprint(first)) {
		t.Errorf("after the kill it got %v, before %v", got, first)
	}
	if early && strings.Contains(st, "is delivered") && !strings.Contains(answer, "You may know this message") {
		t.Errorf("the repeats are not marked: %s", answer)
	}
	// Before the answer, at several moments.
	for i := range 4 {
		hand.calls++
		_, err := fmt.Fprintf(hand.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_direct_messages","arguments":{"limit":4}}}`+"\n", hand.calls)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 3 * time.Millisecond) // any moment is right
		if err := hand.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		written, err := io.ReadAll(hand.out) // the reader has got what was written
		if err != nil {
			t.Fatal(err)
		}
		note(string(written))
		_ = hand.Wait() // it was killed
		hand, _ = d.join("hand")
	}
	// Who lives on gets each message once more at most.
	before := fmt.Sprint(seen)
	for range letters {
		if len(note(read())) == 0 {
			break
		}
	}
	for i, times := range seen {
		if times == 0 || times > 7 { // once for each process
			t.Errorf("letter %d was seen %d times; before %s, now %v", i, times, before, seen)
		}
	}
	wait.Eventually(t, "the receipts", func() bool { return strings.Contains(status(letters-1), "is read") })
	boss.crash()
	hand.crash()
}
