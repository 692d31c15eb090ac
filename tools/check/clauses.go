package main

// clause is one error in the coordination library, and the test that must detect it: the test of a clause that no
// property covers.
type clause struct {
	clause string // of the requirements, or in words
	pkg    string // of the test, which uses rapid
	test   string
	mutation
}

var clauses = []clause{
	{"10.1", ".", "TestChannelsObeyTheRules", mutation{file: "channel/channel.go",
		old: "err := c.m.opts.Policy.PermitEnvelope(c.remote, e); err != nil {\n\t\treturn c.forbidden", new: "err := error(nil); err != nil {\n\t\treturn c.forbidden",
		breaks: "what an agent sends over a channel is not checked"}},
	{"10.1", ".", "TestChannelsObeyTheRules", mutation{file: "router/policy.go",
		old: "\tp := policy{tiers: r.tiers.Load(), sandbox: r.sandbox.Load(), from: sender}\n\terr := p.checkAddress(target)\n", new: "\tp := policy{tiers: r.tiers.Load(), sandbox: r.sandbox.Load(), from: sender}\n\terr := p.checkAddress(sender)\n",
		breaks: "any agent may open a channel to any other"}},
	{"10.1", ".", "TestTheReceivingEndEnforcesTheRules", mutation{file: "channel/receive.go",
		old: "if c.m.opts.Policy.PermitEnvelope(c.local, e) != nil {", new: "if false {",
		breaks: "what arrives over a channel is not checked"}},
	{"10.1", ".", "TestTheReceivingEndEnforcesTheRules", mutation{file: "channel/connect.go",
		old: "if err := m.opts.Policy.PermitChannel(h.From, h.To); err != nil {", new: "if err := error(nil); err != nil {",
		breaks: "a peer opens any channel"}},
	{"10.1", ".", "TestQueuedMessagesObeyTheRulesOfTheirSending", mutation{file: "channel/send.go",
		old: "if err := c.m.opts.Policy.PermitEnvelope(c.remote, f.Envelope); err != nil {", new: "if err := error(nil); err != nil {",
		breaks: "what waited for a connection is not checked again"}},
	{"10.1", ".", "TestZeroOptionsEnforceTheRules", mutation{file: "parley.go",
		old: "\t\to.Policy = n.router\n", new: "",
		breaks: "a node's toolbox has no policy"}},
	{"10.2", "toolbox", "TestInvocationsAreEvents", mutation{file: "toolbox/box.go",
		old: "\t\tb.refuse(caller, o.base(), why)\n", new: "",
		breaks: "a refused tool call is no security event"}},
	{"12.2", "toolbox", "TestInvocationsAreEvents", mutation{file: "telemetry/event.go",
		old: "Sender: i.Caller, Recipient: i.SourceAgent,", new: "Sender: i.SourceAgent,",
		breaks: "the event of a call does not name the caller"}},
	{"10.4", ".", "TestABoxedAgentLearnsNothingOfOutsiders", mutation{file: "router/router.go",
		old: "if err.Code != CodeSandboxViolation { // the sender", new: "if true { // the sender",
		breaks: "a broadcast lists the agents outside"}},
	{"10.4", ".", "TestABoxedAgentLearnsNothingOfOutsiders", mutation{file: "router/policy.go",
		old: "\tif !r.sandbox.Load().admits(from, agent.Identity{ID: to}) {\n", new: "\tif false {\n",
		breaks: "an unknown agent gives another error than one outside"}},
	{"10.4", ".", "TestABoxedAgentLearnsNothingOfOutsiders", mutation{file: "router/router.go",
		old: "\t\tcase d.policy.sandbox.admits(d.policy.from, to):\n", new: "\t\tcase true:\n",
		breaks: "a capability shows the agents outside that have it"}},
	{"3.6", ".", "TestTwoAgentsOfOneNodeHaveAChannel", mutation{file: "channel/connect.go",
		old: "\tif c.own {\n\t\there,", new: "\tif false {\n\t\there,",
		breaks: "agents of one process have no channel"}},
	{"3.7", "channel", "TestReconnectTimeoutIsWaitedOut", mutation{file: "channel/connect.go",
		old: "if c.Status() != Closed && (lasting(err) || last) {", new: "if c.Status() != Closed && (lasting(err) || last || time.Now().Add(c.redial).After(end)) {",
		breaks: "the opener gives up before the end of ReconnectTimeout"}},
	{"replicas", ".", "TestStreamDataGoesToItsReplicaOnly", mutation{file: "channel/receive.go",
		old: "\t\t\thandlers = []*Handler{&x.handle}\n", new: "\t\t\thandlers = append(handlers[:len(handlers):len(handlers)], &x.handle)\n",
		breaks: "the messages of a replica go to the agent, too"}},
	{"panics", "crdt/replica", "TestPanicsOfCallbacksAreEvents", mutation{file: "crdt/replica/handlers.go",
		old: "_ = protect(\"a handler of OnUpdate\", func() { (*f)(u) })", new: "_ = protect\n\t\t\t\t(*f)(u)",
		breaks: "a handler's panic ends the process"}},
	{"panics", "toolbox", "TestPanicsOfCallbacksAreEvents", mutation{file: "toolbox/guard.go",
		old: "\tp.box.o.Telemetry.Emit(event)\n", new: "\t_ = event\n",
		breaks: "a loader's panic is no event"}},
	{"nil", ".", "TestNilHandlersAreErrors", mutation{file: "parley.go",
		old: "\tif h == nil {\n", new: "\tif false {\n",
		breaks: "an agent joins without a handler"}},
}
