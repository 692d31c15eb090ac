package dialect

import (
	"context"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parleyhub/parley/internal/base/text"
	"github.com/parleyhub/parley/internal/hub"
	"github.com/parleyhub/parley/internal/hub/runner"
)

// NeedKind is why something waits for the user.
type NeedKind string

// The kinds of a [Need].
const (
	NeedPermission NeedKind = "permission" // an agent asks whether it may do something
	NeedSender     NeedKind = "sender"     // may this sender give the agent tasks?
	NeedQuestion   NeedKind = "question"   // an agent asks in words
	NeedLogin      NeedKind = "login"      // the user must log in to the agent's program
	NeedHealth     NeedKind = "health"     // an agent is not well for another reason
	NeedDeadLetter NeedKind = "deadletter" // work of a queue has failed for good
	NeedLoop       NeedKind = "loop"       // a loop has stopped with an error, or given items up
	NeedHeld       NeedKind = "held"       // a session's program asks in its own window whether messages may wake the session
)

// Need is one thing that waits for the user.
type Need struct {
	ID    string   `json:"id"` // stays the same while it waits
	Kind  NeedKind `json:"kind"`
	Since Time     `json:"since"` // null if that is not known
	Agent string   `json:"agent,omitempty"`
	// Title is one line of the agent's own words, or of the problem.
	Title     string `json:"title,omitempty"`
	TaskID    string `json:"taskId,omitempty"`
	ContextID string `json:"contextId,omitempty"`
	// RequestID and Options are those of a permission question: a message to the task with a data part
	// {"requestId": …, "optionId": …} answers it. Allow and Deny are the ids of the options that "allow" and "deny" mean.
	RequestID string                    `json:"requestId,omitempty"`
	Options   []runner.PermissionOption `json:"options,omitempty"`
	Allow     string                    `json:"allow,omitempty"`
	Deny      string                    `json:"deny,omitempty"`
	Tool      string                    `json:"tool,omitempty"`
	Input     any                       `json:"input,omitempty"` // of the tool
	// Item is the id of failed work: hub/work/retry and hub/work/discard take it.
	Item string `json:"item,omitempty"`
	// List is that of a loop that failed: hub/loop/dismiss takes it.
	List string `json:"list,omitempty"`
	// Remedy says what to do, if that is known.
	Remedy string `json:"remedy,omitempty"`
	// Sender is who has sent the task, for a question about the sender.
	Sender *hub.Sender `json:"sender,omitempty"`
}

// FailedLoop is a loop of the user that has stopped with an error or given items up, and has not begun again since.
type FailedLoop struct {
	List    string    `json:"list"` // that it works on
	At      time.Time `json:"at"`
	GivenUp int       `json:"givenUp,omitempty"` // items
	Reason  string    `json:"reason,omitempty"`  // of the stop, or why the last item was given up
}

// Loops are the user's loops that failed.
type Loops interface {
	Failed() []FailedLoop
	// Dismiss makes nothing wait for the user because of a loop that failed, until the loop fails again. It reports whether one did.
	Dismiss(list string) (bool, error)
}

// HeldMail is mail for whose session the program asks its user, in the session's own window, before it lets the mail wake it.
type HeldMail struct {
	GUID  string // of the session
	Agent string
	Since time.Time
	From  []string // the sender of each message
}

// Needs is the result of hub/needs: the oldest questions and failed work first, then the agents that are not well.
type Needs struct {
	Needs []Need `json:"needs"`
	Total int    `json:"total"` // of which Needs has the first
}

const (
	maxNeeds     = 500 // of the result
	needsPage    = 1000
	maxNeedTasks = 20_000 // of one state that are read to find the oldest
	maxNeedTitle = 300    // bytes
)

// needs answers hub/needs.
func (s *Service) needs(ctx context.Context) (*Needs, error) {
	found := &Needs{Needs: []Need{}}
	for _, state := range []a2a.TaskState{a2a.TaskStateInputRequired, a2a.TaskStateAuthRequired} {
		if err := s.addTasks(ctx, found, state); err != nil {
			return nil, err
		}
	}
	s.addDeadLetters(ctx, found)
	s.addLoops(found)
	s.addHeld(found)
	found.Needs = oldest(found.Needs)
	for _, info := range s.cfg.Hub.AgentsFor(ctx) {
		if need, ok := needOfAgent(info); ok {
			found.Needs = append(found.Needs, need)
			found.Total++
		}
	}
	return found, nil
}

// addTasks adds the tasks that wait in a state. The hub's pages begin with the newest, and the oldest wait the longest.
func (s *Service) addTasks(ctx context.Context, found *Needs, state a2a.TaskState) error {
	q := hub.TaskQuery{State: state, Limit: needsPage, HistoryLength: new(int)}
	for read := 0; read < maxNeedTasks; {
		page, err := s.cfg.Hub.Tasks(ctx, q)
		if err != nil {
			return err
		}
		if q.Cursor == "" {
			found.Total += page.Total
		}
		for _, t := range page.Tasks {
			found.Needs = append(found.Needs, needOfTask(t))
		}
		found.Needs = oldest(found.Needs)
		read += len(page.Tasks)
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return nil
		}
	}
	return nil
}

// addLoops adds the loops that failed.
func (s *Service) addLoops(found *Needs) {
	if s.cfg.Loops == nil {
		return
	}
	for _, l := range s.cfg.Loops.Failed() {
		title := "stopped"
		if l.GivenUp > 0 {
			title = "gave up " + text.Count(l.GivenUp, "item")
		}
		if l.Reason != "" {
			title += ": " + l.Reason
		}
		found.Needs = append(found.Needs, Need{ID: "loop " + l.List, Kind: NeedLoop, List: l.List, Since: Time{l.At}, Title: text.Clip(text.OneLine(title), maxNeedTitle), Remedy: loopRemedy(l.List)})
		found.Total++
	}
}

// loopRemedy says how to find out why a loop failed, and how to go on.
func loopRemedy(list string) string {
	if queue, ok := strings.CutPrefix(list, "queue "); ok {
		return "what it gave up is failed work of the queue; to go on, run its command again; why, in its project: parley loop status --queue " + shellWord(queue)
	}
	return "to go on, run its command again, with --retry for what it gave up; why: parley loop status " + shellWord(list)
}

// shellWord returns a word as it is typed in a shell.
func shellWord(word string) string {
	plain := func(r rune) bool {
		return r > 127 || unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune(`/._-+:@%,`, r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	if runtime.GOOS == "windows" { // a path has no quotation marks there
		return `"` + word + `"`
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// addHeld adds the mail that the programs of sessions hold. Only the session's own window takes the answer.
func (s *Service) addHeld(found *Needs) {
	if s.cfg.Held == nil {
		return
	}
	for _, h := range s.cfg.Held() {
		from := slices.Clone(h.From)
		slices.Sort(from)
		title := text.Count(len(h.From), "message") + " of " + strings.Join(slices.Compact(from), ", ") + ": its program asks in its own window"
		found.Needs = append(found.Needs, Need{ID: "held " + h.GUID, Kind: NeedHeld, Agent: h.Agent, Since: Time{h.Since}, Title: text.Clip(text.OneLine(title), maxNeedTitle)})
		found.Total++
	}
}

// oldest sorts needs and drops those beyond maxNeeds.
func oldest(needs []Need) []Need {
	slices.SortStableFunc(needs, func(a, b Need) int { return a.Since.Compare(b.Since.Time) })
	if len(needs) <= maxNeeds {
		return needs
	}
	return slices.Clone(needs[:maxNeeds])
}

func needOfTask(t *a2a.Task) Need {
	need := Need{ID: "task " + string(t.ID), Kind: NeedQuestion, TaskID: string(t.ID), ContextID: t.ContextID}
	need.Agent, _ = t.Metadata[hub.MetaAgent].(string)
	if t.Status.Timestamp != nil {
		need.Since = Time{*t.Status.Timestamp}
	}
	if t.Status.Message == nil {
		return need
	}
	message := FromMessage(t.Status.Message)
	need.Title = text.Clip(text.OneLine(message.Text()), maxNeedTitle)
	if t.Status.State == a2a.TaskStateAuthRequired {
		need.Kind = NeedLogin
	}
	if e, ok := t.Status.Message.Metadata[hub.MetaError].(map[string]any); ok {
		remedy, _ := e["remedy"].(string)
		need.Remedy = text.Clip(text.OneLine(remedy), maxNeedTitle)
	}
	if q := PermissionOf(message.Parts); q != nil {
		need.ask(q)
	}
	return need
}

// ask makes the need a permission question.
func (n *Need) ask(q *hub.PermissionData) {
	n.Kind = NeedPermission
	if q.Sender != nil {
		n.Kind, n.Sender = NeedSender, q.Sender
	}
	n.ID += " " + q.RequestID
	n.Title = text.Clip(text.OneLine(q.Title), maxNeedTitle)
	n.RequestID, n.Options, n.Tool, n.Input = q.RequestID, q.Options, q.Tool, q.Input
	if o, ok := runner.Choose(q.Options, runner.Allow); ok {
		n.Allow = o.ID
	}
	if o, ok := runner.Choose(q.Options, runner.Reject); ok {
		n.Deny = o.ID
	}
}

// Permission returns the permission question that the need is about, nil if it is about none.
func (n *Need) Permission() *hub.PermissionData {
	if n.RequestID == "" {
		return nil
	}
	return &hub.PermissionData{RequestID: n.RequestID, Title: n.Title, Tool: n.Tool, Input: n.Input, Options: n.Options, Sender: n.Sender}
}

// PermissionOf returns the permission question among the parts of a status message, nil if it has none.
func PermissionOf(parts []Part) *hub.PermissionData {
	for _, p := range parts {
		if p.Metadata[hub.MetaPermission] == nil {
			continue
		}
		raw, err := json.Marshal(p.Data)
		var q hub.PermissionData
		if err == nil && json.Unmarshal(raw, &q) == nil && len(q.Options) > 0 {
			return &q
		}
	}
	return nil
}

// needOfAgent returns what an agent needs of the user. Programs that are not installed are nobody's problem.
func needOfAgent(info hub.AgentInfo) (Need, bool) {
	health := fromHealth(info.Health)
	if info.Health.Status != hub.Unhealthy || info.Health.Stage == runner.StageMissing || info.Residence.Kind == hub.KindPeer {
		return Need{}, false
	}
	need := Need{
		ID: "agent " + info.Definition.ID, Kind: NeedHealth, Agent: info.Definition.ID, Since: health.LastCheck,
		Title: text.Clip(text.OneLine(health.ErrorMessage), 2*maxNeedTitle),
	}
	if info.Health.Stage == runner.StageInstalled {
		need.Kind = NeedLogin
	}
	return need, true
}
