package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// While the link to the cluster is down, the tools work for the agents of the computer,
// and report the missing link.
func TestTheNetworksToolsWorkWithoutTheLink(t *testing.T) {
	n, hub := startServer(t), startServer(t)
	n.Stop()
	linked := func(project string) *agent {
		return join(t, networkedOptions(t, n, project, hub.dial, nil))
	}
	boss, bossGUID := linked("shop").registered(asDispatcher)
	hand, handGUID := linked("blog").registered(asWorker)
	const notice = "The link to the agents' network is down."
	if c := hand.must("get_my_registration", nil); !strings.Contains(c.text, notice) {
		t.Errorf("%s", c.text)
	}
	if c := boss.must("discover_agents", nil); !strings.Contains(c.text, handGUID) || !strings.Contains(c.text, notice) ||
		!strings.Contains(fmt.Sprint(c.content["notice"]), notice) { // clients show models the structured content only
		t.Errorf("%s\n%v", c.text, c.content)
	}
	c := boss.must("send_direct_message", map[string]any{"recipientGuid": handGUID, "message": "hello"})
	if c.content["queued"] != false {
		t.Errorf("%v", c.content)
	}
	if c := hand.must("wait_for_direct_messages", nil); !strings.Contains(c.text, "hello") || !strings.Contains(c.text, bossGUID) {
		t.Errorf("%s", c.text)
	}
	boss.must("broadcast_work_offer", map[string]any{"taskId": "B", "taskDescription": "x", "requiredCapabilities": []string{"testing"}})
	if c := hand.must("wait_for_direct_messages", nil); !strings.Contains(c.text, "work-offer") {
		t.Errorf("%s", c.text)
	}
	boss.must("submit_work_item", map[string]any{"taskId": "T", "taskDescription": "x", "capability": "typescript"})
	claim := hand.must("claim_work_item", nil)
	item := claim.content["item"].(map[string]any)
	hand.must("complete_work_item", map[string]any{"taskId": "T", "claimToken": item["claimToken"], "success": true, "resultSummary": "all done"})
	if c := boss.must("get_work_item", map[string]any{"taskId": "T"}); !strings.Contains(c.text, "all done") {
		t.Errorf("%s", c.text)
	}
	n.Start()
	patience := time.After(2 * time.Minute) // longer than the interval between two attempts to connect
	for strings.Contains(boss.must("get_my_registration", nil).text, notice) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-patience:
			t.Fatal("the restored link was not noticed")
		}
	}
}
