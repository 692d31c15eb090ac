// Package agentnet is the agents' network: what agents of several projects and
// computers share on one NATS server or cluster. It is section 18 of the MCP
// server's specification.
//
// A [Network] is a process's place on that server. An [Agent], made by
// [Network.Register], is one agent in it: its entry in the registry, its
// inbox, and what it does with the work queues. Everything but registering asks
// for an Agent (REQ-COMPAT-005).
//
// # Subjects and streams
//
//	KV bucket agent-registry             entries, by GUID
//	KV bucket agent-registry-identities  who had which GUID, for a restart
//	KV bucket agent-registry-limits      rate limits, in memory
//	global.agent.{guid}                  an inbox: stream GLOBAL_AGENT_INBOX_{guid},
//	                                     or one stream GLOBAL_AGENT_INBOX for all
//	global.mail.>                        receipts and read marks: GLOBAL_MAIL
//	global.workqueue.{capability}        a queue: stream GLOBAL_WORKQUEUE_{capability}
//	global.workqueue.deadletter          GLOBAL_WORKQUEUE_DEADLETTER
//	global.work.item.{key}               an item's record: GLOBAL_WORK_ITEMS
//	global.audit.registry                what the collector removed: GLOBAL_AUDIT
//
// # Time
//
// Everything that several computers compare is in the server's time, which a
// Network asks for once a connection and carries on with the monotonic clock. A
// computer whose clock is wrong, or jumps, neither seems offline nor takes
// others to be.
//
// # Who holds an item of work
//
// The record of an item is the only authority. Every change of it names the
// revision it replaces, so of two that change it at once one fails. A claim
// has a token that grows with each claim of the item; whoever comes with an
// older one is refused. The queue's message only brings the item to a worker,
// again when its lease has ended.
//
// # While the network cannot be reached
//
// Where there is a hub (Config.DialLocal), an agent has a place on its bus too,
// with the same streams and under the same GUID. near.go says which of the two a
// thing is in, forward.go and outbox.go move what waits there to the network.
package agentnet
