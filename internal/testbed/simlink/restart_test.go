package simlink_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhub/parley/channel"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/testbed/simlink"
)

// A hub that was killed and has started again leaves no channels at the others: what these send to its agents would wait for a
// minute for the process that is gone.
func TestAHubThatStartsAgainLeavesNoChannelsOfItsFormerRun(t *testing.T) {
	f := &federation{records: &records{}}
	dirs := []string{t.TempDir(), t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		f.links = simlink.New(1)
		f.build(t, twoHubs, dirs)
		f.heal()
		defer f.end(t.Context(), func() {})
		bob := f.hubs[1]
		there := func() []*channel.Channel { return bob.process().peers.Node().Channels().Channels() }
		time.Sleep(5 * time.Second)
		g := &given{agent: "bob.worker", prompt: "0-0 10ms", limit: time.Minute}
		g.id = hub.OnceID(g.agent, g.prompt)
		f.follow(t.Context(), g, 0, rand.New(rand.NewPCG(1, 1)))
		before := there()
		if len(before) == 0 {
			t.Fatal("there is no channel")
		}
		f.alice.kill()
		time.Sleep(time.Second)
		f.alice.start()
		time.Sleep(10 * time.Second)
		for _, c := range before {
			if s := c.Status(); s != channel.Closed {
				t.Errorf("a channel of a process that is gone is %s", s)
			}
		}
	})
}
