package mail

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A server that was suspended or cut off says for a moment that an inbox ends before what was read, as if it were a new one.
func TestOnlyALeaderThatItsReplicasAnswerSaysWhereAnInboxEnds(t *testing.T) {
	away, near := &jetstream.PeerInfo{Active: 12 * time.Second, Current: true}, &jetstream.PeerInfo{Active: 990 * time.Millisecond}
	off := &jetstream.PeerInfo{} // not heard since the election
	for name, c := range map[string]struct {
		replicas []*jetstream.PeerInfo
		want     bool
	}{
		"one server of a cluster": {nil, true},
		"all answer":              {[]*jetstream.PeerInfo{near, near}, true},
		"one is away":             {[]*jetstream.PeerInfo{near, away}, true},
		"one is off":              {[]*jetstream.PeerInfo{off, near}, true},
		"it was suspended":        {[]*jetstream.PeerInfo{away, away}, false},
		"it is cut off":           {[]*jetstream.PeerInfo{off, away}, false},
		"half of four answer":     {[]*jetstream.PeerInfo{near, away, away}, false},
	} {
		if got := isLeader(&jetstream.ClusterInfo{Leader: "n1", Replicas: c.replicas}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if isLeader(&jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{near, near}}) {
		t.Error("there is no leader")
	}
	if !isLeader(nil) {
		t.Error("a single server is no leader")
	}
}
