// Package delegation lets one agent of the hub hand work to another, by tools of
// MCP: list_agents, delegate_task, get_task and cancel_task.
//
// Who calls is proven by a token ([Badges]) that the hub puts into the environment
// of each conversation's processes: it names agent and conversation, and it is good
// while the agent has a turn there. Who shows none is the user.
//
// A task keeps by whom it was handed over, and over which agents the work came
// ([hub.Delegation]). An agent that is among these is not asked again, and work is
// handed on a bounded number of times, so that agents which ask each other come to
// an end. The rules about tiers and sandboxes hold as for envelopes.
package delegation
