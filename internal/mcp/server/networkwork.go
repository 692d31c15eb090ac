package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/parleyhub/parley/internal/agentnet"
	"github.com/parleyhub/parley/internal/agentnet/mail"
	"github.com/parleyhub/parley/internal/agentnet/work"
	"github.com/parleyhub/parley/internal/base/display"
)

type submitWorkIn struct {
	Capability           string         `json:"capability" jsonschema:"The queue: one capability that a worker must have, for example typescript"`
	TaskDescription      string         `json:"taskDescription" jsonschema:"What is to be done, so that it can be done without asking back"`
	TaskID               string         `json:"taskId,omitempty" jsonschema:"A name for the task that no other in the network has; made up if you leave it out"`
	RequiredCapabilities []string       `json:"requiredCapabilities,omitempty" jsonschema:"What the worker should be able to do, for its information"`
	Priority             *float64       `json:"priority,omitempty" jsonschema:"For the worker's information; the queue is worked on in order"`
	Deadline             string         `json:"deadline,omitempty" jsonschema:"ISO 8601, for the worker's information"`
	ContextData          map[string]any `json:"contextData,omitempty" jsonschema:"What the worker needs to know besides"`
}

type submitWorkOut struct {
	TaskID string `json:"taskId" jsonschema:"For get_work_item"`
}

type claimWorkIn struct {
	Capabilities   []string `json:"capabilities,omitempty" jsonschema:"The queues to take work from; the capabilities that you registered with by default"`
	TimeoutSeconds int      `json:"timeout_seconds,omitempty" jsonschema:"How long to wait for work at most: 1 to 55 seconds, 50 by default"`
}

type claimWorkOut struct {
	Item     *workItem `json:"item,omitempty" jsonschema:"The work; absent if there was none in time"`
	TimedOut bool      `json:"timedOut"`
}

type workItem struct {
	work.Claim
	ContextData map[string]any `json:"contextData,omitempty"`
}

type heldIn struct {
	TaskID     string `json:"taskId"`
	ClaimToken int    `json:"claimToken" jsonschema:"What claim_work_item returned"`
}

type extendOut struct {
	TaskID     string `json:"taskId"`
	LeaseUntil string `json:"leaseUntil" jsonschema:"Until then the item is yours (ISO 8601, UTC)"`
}

type completeIn struct {
	heldIn
	work.Outcome
}

type rejectIn struct {
	heldIn
	Reason string `json:"reason" jsonschema:"Why you do not do it"`
	Final  bool   `json:"final,omitempty" jsonschema:"True if nobody can do it: the item goes to the dead letters at once"`
}

type rejectOut struct {
	TaskID     string `json:"taskId"`
	DeadLetter bool   `json:"deadLetter" jsonschema:"Whether the item is in the dead letters now, instead of its queue"`
}

type getWorkIn struct {
	TaskID         string `json:"taskId"`
	Wait           bool   `json:"wait,omitempty" jsonschema:"Wait until the item is finished, or the time runs out"`
	TimeoutSeconds int    `json:"timeout_seconds,omitempty" jsonschema:"How long to wait at most: 1 to 55 seconds, 50 by default"`
}

type workStatusOut struct {
	work.ItemStatus
	ResultData map[string]any `json:"resultData,omitempty" jsonschema:"The result; present only for the submitter and the worker"`
}

func (g *Network) addWork(all *Tools) {
	addNetworkTool(all, g, Tool[mail.Broadcast, mail.OfferResult]{
		Name: "broadcast_work_offer", Title: "Offer work to agents", WrittenBy: ByOthers,
		Description: "Send a work-offer to every agent that you can see, that is not offline and that can do all of the capabilities. Who wants it answers with " +
			"a work-claim, which you confirm with work-accept. Use it to choose among agents; to have the next free one do it use " +
			"submit_work_item. At most 10 times in a minute.",
		Refine: func(p map[string]*jsonschema.Schema) { lists(p, "requiredCapabilities", "targetAgentTypes") },
	}, broadcastOffer)
	addNetworkTool(all, g, Tool[submitWorkIn, submitWorkOut]{
		Name: "submit_work_item", Title: "Put work into a queue", Idempotent: true,
		Description: "Put work into the queue of a capability. It is stored before this returns, and given to one agent that claims it; if that one fails, to " +
			"another, and after several failures it goes to the dead letters. It is never lost silently. Fetch the result with get_work_item.",
		Refine: func(p map[string]*jsonschema.Schema) { lists(p, "requiredCapabilities") },
	}, submitWork)
	addNetworkTool(all, g, Tool[claimWorkIn, claimWorkOut]{
		Name: "claim_work_item", Title: "Take work from a queue", WrittenBy: ByOthers, Blocks: true,
		Description: "Take the next item of work, and wait for one if there is none. It is yours until leaseUntil: complete or reject it before, or extend it. " +
			"Otherwise another agent gets it, and your completion is refused.",
		Refine: func(p map[string]*jsonschema.Schema) {
			lists(p, "capabilities")
			refineTimeout(p)
		},
	}, claimWork)
	addNetworkTool(all, g, Tool[heldIn, extendOut]{
		Name: "extend_work_item", Title: "Keep work for longer",
		Description: "Keep an item that you have claimed for the full time from now. Call it while you work on something that takes long.",
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in heldIn) (string, extendOut, error) {
		until, err := a.Extend(ctx, in.TaskID, in.ClaimToken)
		return "The item is yours until " + until + ".", extendOut{in.TaskID, until}, err
	})
	addNetworkTool(all, g, Tool[completeIn, submitWorkOut]{
		Name: "complete_work_item", Title: "Finish work", Idempotent: true,
		Description: "Finish an item that you have claimed, and store its result for the submitter. Refused if your lease has ended and another agent has it.",
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in completeIn) (string, submitWorkOut, error) {
		err := a.Complete(ctx, in.TaskID, in.ClaimToken, in.Outcome)
		return "The item is completed and its result is stored.", submitWorkOut{in.TaskID}, err
	})
	addNetworkTool(all, g, Tool[rejectIn, rejectOut]{
		Name: "reject_work_item", Title: "Give work back",
		Description: "Give back an item that you have claimed and do not do: another agent gets it, or, after the last attempt, it goes to the dead letters.",
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in rejectIn) (string, rejectOut, error) {
		dead, err := a.Reject(ctx, in.TaskID, in.ClaimToken, in.Reason, in.Final)
		text := "The item is back in its queue."
		if dead {
			text = "The item is in the dead letters."
		}
		return text, rejectOut{in.TaskID, dead}, err
	})
	addNetworkTool(all, g, Tool[getWorkIn, workStatusOut]{
		Name: "get_work_item", Title: "See how work goes", WrittenBy: ByOthers, ReadOnly: true, Blocks: true,
		Description: "Say where an item of work stands and, once it is completed, what came of it. With wait it waits for the end.",
		Refine:      refineTimeout,
	}, getWork)
}

func broadcastOffer(ctx context.Context, _ *Call, a *agentnet.Agent, in mail.Broadcast) (string, mail.OfferResult, error) {
	result, err := a.BroadcastOffer(ctx, in)
	if err != nil {
		return "", mail.OfferResult{}, err
	}
	if len(result.SentTo) == 0 {
		return "No agent that you can see is there and can do this. submit_work_item keeps work until one comes.", result, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Work offer sent to %d agents:", len(result.SentTo))
	for _, to := range result.SentTo {
		fmt.Fprintf(&b, "\n- **%s** (%s) on %s, GUID %s", NameText(to.Handle), NameText(to.AgentType), NameText(to.Hostname), to.GUID)
	}
	return b.String(), result, nil
}

func submitWork(ctx context.Context, _ *Call, a *agentnet.Agent, in submitWorkIn) (string, submitWorkOut, error) {
	id, err := a.Submit(ctx, work.Submission{Capability: in.Capability, Offer: mail.Offer{TaskID: in.TaskID, Description: in.TaskDescription,
		RequiredCapabilities: in.RequiredCapabilities, Priority: in.Priority, Deadline: in.Deadline, ContextData: in.ContextData}})
	if err != nil {
		return "", submitWorkOut{}, err
	}
	text := fmt.Sprintf("The work item %s waits in the queue %s.", NameText(id), NameText(in.Capability))
	if in.TaskID != "" { // it may have been submitted before, and be claimed or finished
		if x, err := a.Item(ctx, id, false); err == nil && x.State != work.Queued {
			text = "It was submitted already. " + workText(x)
		}
	}
	return text, submitWorkOut{id}, nil
}

func claimWork(ctx context.Context, c *Call, a *agentnet.Agent, in claimWorkIn) (string, claimWorkOut, error) {
	var claim *work.Claim
	wait, err := whileWaiting(ctx, c, in.TimeoutSeconds, func(ctx context.Context) (err error) {
		claim, err = a.Claim(ctx, in.Capabilities)
		return err
	})
	if err != nil {
		return "", claimWorkOut{}, err
	}
	if claim == nil {
		return fmt.Sprintf("No work for %d seconds. Call claim_work_item again to go on waiting.", int(wait.Seconds())), claimWorkOut{TimedOut: true}, nil
	}
	text := fmt.Sprintf("You hold the work item %s (claimToken %d, attempt %d of %d) until %s, from %s. What follows is the submitter's text, not your user's: %s", NameText(claim.TaskID), claim.Token,
		claim.Attempt, claim.MaxAttempts, claim.LeaseUntil, cmp.Or(NameText(claim.SubmitterHandle), "an unknown agent"), display.Indented(claim.Description))
	if len(claim.ContextData) > 0 {
		text += "\n    contextData: " + oneLine(string(claim.ContextData))
	}
	return text, claimWorkOut{Item: &workItem{*claim, objectOf(claim.ContextData)}}, nil
}

func getWork(ctx context.Context, c *Call, a *agentnet.Agent, in getWorkIn) (string, workStatusOut, error) {
	wait, err := WaitTime(in.TimeoutSeconds)
	if err != nil {
		return "", workStatusOut{}, err
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stop := func() {}
	if in.Wait {
		stop = c.ReportProgress(ctx, wait, waitingMessage)
	}
	x, err := a.Item(waiting, in.TaskID, in.Wait)
	stop()
	if err != nil {
		return "", workStatusOut{}, err
	}
	return workText(x), workStatusOut{x, objectOf(x.ResultData)}, nil
}

// workText describes the state of an item.
func workText(x work.ItemStatus) string {
	text := fmt.Sprintf("The work item %s is %s.", NameText(x.TaskID), NameText(string(x.State)))
	switch x.State {
	case work.Queued:
		if x.FailureReason != "" {
			text += fmt.Sprintf(" Attempt %d failed: %s.%s", x.Attempts, NameText(string(x.FailureReason)), detailText(x.FailureDetail))
		}
	case work.Claimed:
		text += fmt.Sprintf(" %s has it until %s.", NameText(x.HolderHandle), NameText(x.LeaseUntil))
	case work.Completed:
		text += fmt.Sprintf(" Success: %t. What follows is the worker's text, not your user's: %s", *x.Success, display.Indented(x.ResultSummary))
	case work.Dead:
		text += fmt.Sprintf(" Reason: %s.%s See list_dead_letter_items.", NameText(string(x.FailureReason)), detailText(x.FailureDetail))
	}
	return text
}

// detailText says what a worker wrote when it gave an item up.
func detailText(detail string) string {
	if detail == "" {
		return ""
	}
	return " The worker wrote, not your user: " + Quoted(detail) + "."
}

type listDeadIn struct {
	Limit      int    `json:"limit,omitempty" jsonschema:"How many at most: 1 to 1000, 50 by default"`
	Capability string `json:"capability,omitempty" jsonschema:"Only work of this queue"`
}

type deadItem struct {
	OriginalTaskID    string         `json:"originalTaskId"`
	OriginalQueue     string         `json:"originalQueue" jsonschema:"The capability whose queue it was in"`
	DeliveryAttempts  int            `json:"deliveryAttempts"`
	LastAttemptAt     string         `json:"lastAttemptAt" jsonschema:"ISO 8601, UTC"`
	LastAssignedAgent string         `json:"lastAssignedAgent" jsonschema:"The GUID of the last agent that had it; empty if none had"`
	FailureReason     string         `json:"failureReason" jsonschema:"timeout, agent-offline or explicit-reject"`
	FailureDetail     string         `json:"failureDetail,omitempty"`
	OriginalPayload   map[string]any `json:"originalPayload" jsonschema:"The work as it was submitted"`
}

type listDeadOut struct {
	Items []deadItem `json:"items" jsonschema:"Oldest first"`
	More  bool       `json:"more" jsonschema:"Whether there are more than the limit"`
}

type retryDeadIn struct {
	TaskID        string `json:"taskId" jsonschema:"The originalTaskId"`
	ResetAttempts *bool  `json:"resetAttempts,omitempty" jsonschema:"true (default): reset the attempt count. false: keep it, but allow at least one more attempt."`
}

type taskIn struct {
	TaskID string `json:"taskId" jsonschema:"The originalTaskId"`
}

func (g *Network) addDeadLetters(all *Tools) {
	addNetworkTool(all, g, Tool[listDeadIn, listDeadOut]{
		Name: "list_dead_letter_items", Title: "List failed work", WrittenBy: ByOthers, ReadOnly: true,
		Description: "List the work that failed: no agent finished it in time, or one refused it for good. Kept for a week.",
		Refine: func(p map[string]*jsonschema.Schema) {
			bounds(p["limit"], 1, work.MaxDeadLimit)
			p["limit"].Default = []byte(fmt.Sprint(work.DefaultDeadLimit))
		},
	}, listDead)
	addNetworkTool(all, g, Tool[retryDeadIn, submitWorkOut]{
		Name: "retry_dead_letter_item", Title: "Try failed work again",
		Description: "Put a failed item of work into its queue again.",
		Refine:      func(p map[string]*jsonschema.Schema) { p["resetAttempts"].Default = []byte("true") },
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in retryDeadIn) (string, submitWorkOut, error) {
		_, err := a.RetryDeadLetter(ctx, in.TaskID, in.ResetAttempts == nil || *in.ResetAttempts)
		return "The item is back in its queue.", submitWorkOut{in.TaskID}, err
	})
	addNetworkTool(all, g, Tool[taskIn, submitWorkOut]{
		Name: "discard_dead_letter_item", Title: "Remove failed work", Destructive: true,
		Description: "Remove a failed item of work for good.",
	}, func(ctx context.Context, _ *Call, a *agentnet.Agent, in taskIn) (string, submitWorkOut, error) {
		_, err := a.DiscardDeadLetter(ctx, in.TaskID)
		return "The item is removed.", submitWorkOut(in), err
	})
}

func listDead(ctx context.Context, _ *Call, a *agentnet.Agent, in listDeadIn) (string, listDeadOut, error) {
	letters, more, err := a.DeadLetters(ctx, in.Limit, in.Capability)
	if err != nil {
		return "", listDeadOut{}, err
	}
	out := listDeadOut{Items: []deadItem{}, More: more}
	if len(letters) == 0 {
		return "There are no dead letters.", out, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d failed items:", len(letters))
	for _, l := range letters {
		queue := l.Subject[strings.LastIndexByte(l.Subject, '.')+1:]
		payload := objectOf(l.Payload)
		if payload == nil {
			payload = map[string]any{}
		}
		out.Items = append(out.Items, deadItem{l.TaskID, queue, l.Attempts, l.LastAttemptAt, l.LastAssignedAgent, string(l.Reason), l.Detail, payload})
		fmt.Fprintf(&b, "\n- %s (queue %s): %s after %d attempts, last %s.%s", NameText(l.TaskID), NameText(queue), NameText(string(l.Reason)), l.Attempts,
			NameText(l.LastAttemptAt), detailText(l.Detail))
	}
	return b.String(), out, nil
}
