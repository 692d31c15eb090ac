//go:build interop && linux

package interop_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/parleyhub/parley/internal/stubmodel"
)

const (
	askClaim = "claim the plan"
	askWrite = "write the plan"
)

var (
	toHolder   = regexp.MustCompile(`send_direct_message to ([0-9a-f-]{36})`)
	senderGUID = regexp.MustCompile(`senderGuid\\*":\s*\\*"([0-9a-f-]{36})`)
)

// planners are models that both want to write one file.
type planners struct {
	file string

	mu      sync.Mutex
	asker   string // who wants the file
	refused bool
}

func (p *planners) script(said, result string, used int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	write := "WRITE:" + p.file
	switch holder, asker := toHolder.FindStringSubmatch(result), senderGUID.FindStringSubmatch(result); {
	case strings.HasPrefix(said, "Generate"): // a title
		return ""
	case strings.Contains(said, askClaim) && used == 0:
		return `USE:claim_files {"paths":["plan.md"],"why":"it is in my hands"}`
	case strings.Contains(said, askWrite) && used == 0:
		return write
	case strings.Contains(said, askWrite) && used == 1 && holder != nil:
		p.refused = true
		return fmt.Sprintf(`USE:send_direct_message {"recipientGuid":%q,"message":"may I have plan.md?"}`, holder[1])
	case !strings.Contains(said, "Parley: "):
		return "nothing more to do"
	case used == 0:
		return "USE:read_direct_messages {}"
	case used == 1 && strings.Contains(result, "may I have plan.md?") && asker != nil:
		p.asker = asker[1]
		return "USE:release_files {}"
	case used == 2 && strings.Contains(strings.ToLower(result), "released"):
		return fmt.Sprintf(`USE:send_direct_message {"recipientGuid":%q,"message":"plan.md is free"}`, p.asker)
	case used == 1 && strings.Contains(result, "plan.md is free"):
		return write
	}
	return "nothing more to do"
}

// Two sessions want to write one file: the second is denied, asks the first, and writes the file once that has released it.
func TestAnAgentGetsAFileWhenItsHolderReleasesIt(t *testing.T) {
	t.Parallel()
	p := &planners{}
	o := newOpinions(t, &stubmodel.Handler{Script: func(said, result string, used int) string { return p.script(said, result, used) }},
		"--permission-mode", "acceptEdits")
	p.mu.Lock()
	p.file = filepath.Join(o.shop, "plan.md")
	p.mu.Unlock()
	o.codex.say(t, askClaim, func() bool {
		out, err := o.office.command(t.Context(), "claims").Output()
		return err == nil && strings.Contains(string(out), "plan.md")
	})
	if _, err := os.Stat(p.file); err == nil {
		t.Fatal("the file is there already")
	}
	o.claude.enter(t, askWrite, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.refused
	})
	until(t, "the file is written", func() bool {
		_, err := os.Stat(p.file)
		return err == nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asker == "" {
		t.Error("the holder was not asked")
	}
}
