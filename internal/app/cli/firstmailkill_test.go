//go:build unix

package cli_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/parleyhub/parley/internal/base/wait"
)

var (
	firstMailKills = flag.Int("first-mail-kills", 5, "kills of the hub while the first mail of an agent makes its inbox")
	firstMailSeed  = flag.Uint64("first-mail-seed", 0, "repeats the moments of a run; 0 is a random one")
)

// maxFirstMail is the longest time from the begin of a first mail to the kill: the inbox is made and the mail stored before it.
const maxFirstMail = 25 * time.Millisecond

// A hub that is killed while it makes an agent's inbox with its first mail, before it, between the inbox and the mail or after it,
// loses no mail that was reported as sent, and delivers none twice.
func TestAHubThatIsKilledMakingAnInboxLosesNoMail(t *testing.T) {
	t.Parallel()
	seed := *firstMailSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("repeat it with: -first-mail-seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	d := newMachine(t)
	boss, _ := d.join("boss")
	reports := map[bool]int{}
	for n := range *firstMailKills {
		hand, guid := d.join(fmt.Sprintf("hand-%d", n))
		send := func(letter string) bool {
			return sentPattern.MatchString(boss.say("send_direct_message", `{"recipientGuid":%q,"message":"%s"}`, guid, letter))
		}
		killed := make(chan struct{})
		delay := time.Duration(random.Int64N(int64(maxFirstMail)))
		go func() {
			defer close(killed)
			time.Sleep(delay)
			d.killHub()
		}()
		sent := send("the first letter.")
		<-killed
		reports[sent]++
		wait.Eventually(t, "another letter is sent", func() bool { return send("the second letter.") })
		var first, second int
		read := func() string {
			said := hand.say("read_direct_messages", `{}`)
			first += strings.Count(said, "the first letter.")
			second += strings.Count(said, "the second letter.")
			return said
		}
		wait.Eventually(t, "the letters are read", func() bool { read(); return second > 0 })
		wait.Eventually(t, "nothing is left", func() bool { return strings.Contains(read(), "No ") })
		if first > 1 || sent && first == 0 {
			t.Errorf("killed after %s: the first letter, sent %v, arrived %d times", delay, sent, first)
		}
		hand.crash()
	}
	t.Logf("first letters that were reported as sent: %d, as not sent: %d", reports[true], reports[false])
	boss.crash()
}
