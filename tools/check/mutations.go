package main

// mutation is one error in the library, and the property that must detect it.
type mutation struct {
	property string // two digits
	file     string
	old, new string // old occurs exactly once
	breaks   string // in words
}

var mutations = []mutation{
	{"01", "registry/registry.go", "\t\tx.put(e)\n\t}\n\tif e.card.Origin", "\t\t_ = x\n\t}\n\tif e.card.Origin", "capabilities are not indexed"},
	{"01", "registry/registry.go", "\tr.byID[e.card.ID] = e\n", "\tr.byID[e.card.Name] = e\n", "cards are stored under their names"},
	{"01", "registry/registry.go", "\tr.byTier[e.card.Tier.Level()].put(e)\n", "\tr.byTier[0].put(e)\n", "every card counts as L0"},

	{"02", "agent/validate.go", "\tcase c.Tier == NoTier:\n\t\tv.missing(\"tier\")\n", "", "a card without a tier is not named as missing it"},
	{"02", "agent/validate.go", "if c.Capabilities == nil {", "if false {", "a card without capabilities is taken"},
	{"02", "registry/registry.go", "if err := card.Validate(); err != nil {", "if err := card.Validate(); err != nil && card.ID == \"\" {", "only the id is required"},

	{"03", "registry/registry.go", "card.Revision = min(old.card.Revision+1, agent.MaxRevision)", "card.Revision = old.card.Revision", "the revision stays"},
	{"03", "registry/registry.go", "\t\tif next.Has(c.ID) {\n", "\t\tif true {\n", "an update leaves the former capabilities indexed"},
	{"03", "registry/registry.go", "\tif next.Tier != e.card.Tier {\n", "\tif false {\n", "an update leaves the card in its former tier"},

	{"04", "agent/card.go", "`json:\"sandboxId,omitempty\"`", "`json:\"-\"`", "the sandbox is not written"},
	{"04", "agent/tier.go", "\ttier := TierOf(level)\n", "\ttier := TierOf(level &^ 1)\n", "odd tiers are read as even ones"},

	{"05", "registry/registry.go", "\t\tcard.Origin = agent.Remote\n", "", "the origin stays what the peer said"},
	{"05", "registry/registry.go", "\t\tcard.Origin = agent.Remote\n", "\t\tcard.Origin = agent.Remote\n\t\tcard.Revision++\n", "merging changes the revision"},

	{"06", "envelope/envelope.go", "rand.Uint64()&(1<<62-1)|1<<63)", "1<<63)", "ids have twelve random bits"},
	{"06", "envelope/envelope.go", "Timestamp: now, Payload: raw", "Timestamp: -now, Payload: raw", "timestamps are negative"},
	{"06", "envelope/factory.go", "m := Metadata{Tier: sender.Tier, SandboxID: sender.SandboxID}", "m := Metadata{Tier: agent.L0, SandboxID: sender.SandboxID}", "every sender states tier L0"},

	{"07", "envelope/codec.go", "\tif e.CorrelationID != \"\" {\n", "\tif false {\n", "the correlation id is not written"},
	{"07", "envelope/codec.go", "\t\t{`,\"tracestate\":`, m.TraceState},\n", "", "the trace state is not written"},
	{"07", "internal/base/rawjson/scan.go", "\t\tcase '\"', '\\\\':\n\t\t\tdst = append(dst, '\\\\', c)\n", "\t\tcase '\"', '\\\\':\n\t\t\tdst = append(dst, c)\n", "quotes are not escaped"},

	{"08", "envelope/threads.go", "return -1 // after", "return 0 // after", "envelopes of one millisecond are reversed"},
	{"08", "envelope/threads.go", "t.envelopes = slices.Insert(t.envelopes, at, e)", "_ = at\n\tt.envelopes = append(t.envelopes, e)", "threads are in order of arrival"},

	{"09", "envelope/envelope.go", "\t\tStreamStart, StreamData, StreamEnd, ErrorMessage:\n", "\t\tStreamStart, StreamData, ErrorMessage:\n", "stream-end is no type"},
	{"09", "envelope/envelope.go", "e.SchemaVersion == SchemaVersion && e.Type.Valid()", "e.SchemaVersion == SchemaVersion && e.Type != \"\"", "any type is taken"},

	{"10", "channel/channel.go", "\t\treturn s == Open\n", "\t\treturn s == Open || s == Connecting\n", "a channel that never opened may reconnect"},
	{"10", "channel/channel.go", "\t\treturn s == Connecting || s == Reconnecting\n", "\t\treturn s == Connecting\n", "a broken channel does not open again"},
	{"10", "channel/channel.go", "\tif !c.set(Closed) {\n", "\tif false {\n", "a closed channel is not marked as closed"},

	{"11", "channel/receive.go", "\tcase f.Seq <= in.received:\n", "\tcase f.Seq < in.received:\n", "a repeated envelope is taken again"},
	{"11", "channel/connect.go", "c.out.wire = h.Received", "c.out.wire = c.out.sent", "what was on a broken connection is not sent again"},
	{"11", "channel/receive.go", "\tif f.Seq > in.received+1 {\n", "\tif false {\n", "envelopes are handled as they come"},

	{"12", "channel/send.go", "c.m.opts.RetryDelay << (failed.n - 1)", "c.m.opts.RetryDelay", "the delay stays the same"},
	{"12", "channel/send.go", "failed.n <= c.m.opts.Retries:", "failed.n < c.m.opts.Retries:", "there are only two retries"},
	{"12", "channel/send.go", "\t\tc.fail(o.e, c.errorf(CodeDeliveryFailed, err, \"envelope %s could not be delivered in %d attempts\", o.e.ID, n))\n", "", "an envelope that was given up is not reported"},

	{"13", "router/router.go", "\t\treturn err\n\t}\n\treturn d.deliver(to)\n", "\t\treturn err\n\t}\n\treturn nil\n", "nothing is delivered"},
	{"13", "router/router.go", "\t\t\tunknown := d.r.unknown(d.policy.from, d.e.Recipient)\n", "\t\t\tif err == nil {\n\t\t\t\treturn nil\n\t\t\t}\n\t\t\tunknown := d.r.unknown(d.policy.from, d.e.Recipient)\n", "an unknown recipient is no error"},

	{"14", "router/router.go", "\t\tif to.ID == d.e.Sender {\n", "\t\tif to.ID == d.e.Sender || i == 1 {\n", "the second agent is left out"},
	{"14", "router/router.go", "\t\tif to.ID == d.e.Sender {\n", "\t\tif false {\n", "senders get their own broadcasts"},

	{"15", "router/router.go", "all := d.r.reg.Capable(id)\n", "all := d.r.reg.Identities()\n", "anybody has every capability"},
	{"15", "router/router.go", "{ return to.ID != d.e.Sender && d.r.receives(to.ID) }", "{ return d.r.receives(to.ID) }", "senders are asked first"},
	{"15", "router/router.go", "if best.ID == \"\" || load < least {", "if n > 0 || len(able) < 2 {", "the first is passed over"},

	{"16", "router/policy.go", "AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1}},", "AllowedTargetTiers: []agent.Tier{agent.L0, agent.L1, agent.L2}},", "L1 may address L2"},
	{"16", "router/policy.go", "p.tiers.justify[from] && to.Tier <= agent.L1", "p.tiers.justify[from] && to.Tier <= agent.L0", "proposals to L1 need no justification"},
	{"16", "router/policy.go", "p.justified = strings.TrimSpace(text) != \"\"", "p.justified = text != \"\" || strings.TrimSpace(text) != \"\"", "a blank is a justification"},
	{"16", "router/policy.go", "if p.e.Type == envelope.TaskProposal && ", "if ", "every message needs a justification"},

	{"17", "router/router.go", "\t\tevent.Success, event.Code, event.Detail = telemetry.Failure, string(err.Code), err.Error()\n\t\td.record(*event, d.e)\n", "\t\tevent.Success, event.Code, event.Detail = telemetry.Failure, string(err.Code), err.Error()\n", "failures give no routing event"},
	{"17", "router/router.go", "d.result.Path = telemetry.PathRemote\n", "d.result.Path = telemetry.PathLocal\n", "the remote path is called local"},

	{"18", "toolbox/tool.go", "return Tool{t, from} })", "return Tool{t, t.Name} })", "a tool is listed without its agent"},
	{"18", "toolbox/provider.go", "qualified := p.id + \".\" + name", "qualified := p.id + \".\" + name + \"x\"", "tools stand under other names"},
	{"18", "toolbox/box.go", "range slices.Sorted(maps.Keys(b.offers[k])) {", "range slices.Collect(maps.Keys(b.offers[k])) {", "lists are in no order"},
	{"19", "toolbox/tool.go", "return t.handler(ctx, c) })", "return t.handler(ctx, &Call{Tool: c.Tool}) })", "tools get no arguments"},
	{"19", "toolbox/box.go", "\to = b.offers[k][key]\n", "\to = b.offers[k][key]\n\tfor _, o = range b.offers[k] {\n\t\tbreak\n\t}\n", "any tool may answer"},
	{"20", "toolbox/provider.go", "switch _, taken := all[e.key]; {", "switch taken := false; {", "the second tool takes the place of the first"},
	{"21", "toolbox/resource.go", "cmp.Or(c.MIMEType, r.mimeType)", "c.MIMEType", "resources are read without their MIME type"},
	{"21", "toolbox/resource.go", "return r.load(ctx, uri) })", "return r.load(ctx, \"\") })", "loaders are not told what is read"},
	{"22", "toolbox/prompt.go", "return arguments[strings.TrimSpace(found[2:len(found)-2])]", "return arguments[found[2:len(found)-2]]", "blanks within the braces count"},
	{"22", "toolbox/prompt.go", "\t\ttext := placeholder().ReplaceAllStringFunc(body,", "\t\ttext := placeholder().ReplaceAllString(body, \"\")\n\t\t_ = placeholder().ReplaceAllStringFunc(body,", "placeholders are left out"},
	{"33", "toolbox/tool.go", "Success: failed == nil,", "Success: true,", "failures count as successes"},

	{"23", "negotiation/proposal.go", "DeadlineMs: t.Deadline.Milliseconds(),", "DeadlineMs: t.Deadline.Milliseconds() + 1,", "the deadline is another one"},
	{"23", "negotiation/proposal.go", "EstimatedComplexity: t.EstimatedComplexity, DeadlineMs", "EstimatedComplexity: Simple, DeadlineMs", "every task is simple"},
	{"23", "negotiation/negotiator.go", "Message: why.Message, AlternativeSuggestion: why.Alternative,\n", "Message: why.Message,\n", "nobody else is suggested"},
	{"23", "negotiation/negotiator.go", "AgentID: n.id, EstimatedCompletionMs: estimate.Milliseconds()", "AgentID: proposalID, EstimatedCompletionMs: estimate.Milliseconds()", "the acceptance does not say who accepts"},

	{"24", "negotiation/negotiator.go", "\te.CorrelationID = p.CorrelationID\n", "\te.CorrelationID = p.ID\n", "the proposal's id is the thread"},
	{"24", "negotiation/negotiator.go", "\tn.o.Threads.Add(e) // before the other side can answer\n", "", "what is sent is not in the thread"},

	{"25", "swarm/recruit.go", "hasAll(&card, capabilities) && l.useful(&card)", "l.useful(&card)", "the first capability is enough"},
	{"25", "swarm/recruit.go", "return ids[:min(len(ids), ", "return ids[:min(len(ids), 1, ", "only one agent is asked"},

	{"26", "swarm/recruit.go", "l.emit(event{Joined: sortedKeys(busy)})", "l.emit(event{Joined: accepted})", "who has nothing to do takes part"},
	{"26", "swarm/session.go", "\tx.put(partKey(t.ID), x.partValue(t))\n", "", "the shared state does not hear of results"},
	{"26", "swarm/session.go", "t.Status, t.Result, t.AssignedAgent, t.Error = TaskCompleted, e.Result, e.Agent, \"\"", "t.Status, t.AssignedAgent, t.Error = TaskCompleted, e.Agent, \"\"", "results are lost"},

	{"27", "crdt/replica/receive.go", "\tcase l != nil && r.buffer.known(m), l == nil && m.Seq <= r.buffer.clock[key]:\n", "\tcase false:\n", "a repeated update is applied again"},
	{"27", "crdt/replica/replica.go", "\tr.buffer.clock[key]++\n", "", "broadcasts are not counted by the vector clock"},
	{"27", "crdt/replica/buffer.go", "\t\tif key != m.key() && b.clock[key] < n {\n", "\t\tif false && n == 0 {\n\t\t\t_ = key\n", "updates of others that a maker had seen are not waited for"},
	{"27", "crdt/replica/replica.go", "\tr.spread(m, nil)\n", "", "an edit is not broadcast"},
	{"27", "crdt/replica/receive.go", "\tr.handlers.notify(Update{Message: m})\n", "", "the application does not hear of others' updates"},
	{"28", "crdt/integrate.go", "\t\t\tif o.id.Client < it.id.Client {\n", "\t\t\tif d.updates%2 == 0 {\n", "siblings are in order of arrival"},
	{"28", "crdt/integrate.go", "\tif it.has(flagKeyed) && it.right == nil && it.left != nil {\n\t\td.delete(it.left)\n\t}\n", "", "a key's former value stays"},
	{"28", "crdt/content.go", "\tr.origin = ID{it.id.Client, r.id.Clock - 1}\n", "", "the right half of a cut item keeps the left one's origin"},
	{"28", "crdt/pending.go", "\tif r.Length > 0 {\n\t\td.parkDeletes(id, r)\n\t}\n", "", "deletes of what is not here yet are forgotten"},
	{"28", "crdt/doc.go", "\td.applyParkedDeletes()\n", "", "deletes that waited are not applied"},
	{"28", "crdt/pending.go", "\tif c.state > before {\n\t\td.wake(c)\n\t}\n}\n\n// integrateRun", "\t_ = before\n}\n\n// integrateRun", "waiters are not woken"},
	{"28", "crdt/replica/receive.go", "\t\t\tr.ask(l, \"digests differ\")\n", "", "replicas whose digests differ do nothing"},
	{"28", "crdt/replica/epoch.go", "\tr.setDocument(doc)\n\tr.session,", "\tr.unobserve()\n\tr.unobserve = doc.OnUpdate(r.changed)\n\tif r.doc.Items() == 0 {\n\t\tr.setDocument(doc)\n\t}\n\tr.session,", "a replica takes its copy along into another epoch"},

	{"29", "router/policy.go", "from.SandboxID == \"\" || from.SandboxID == to.SandboxID ||", "from.SandboxID == \"\" || to.SandboxID != \"\" ||", "all sandboxes are one"},
	{"29", "router/policy.go", "\t\ts.all[to.ID] || s.allowed[from.SandboxID][to.ID]\n", "\t\ts.all[to.ID]\n", "a sandbox's own list does not count"},
	{"29", "router/router.go", "\t\tif err.Code.refusal() {\n\t\t\td.refuse(d.target, err)\n", "\t\tif false {\n\t\t\td.refuse(d.target, err)\n", "refusals give no security event"},
	{"29", "router/router.go", "\t\tif err.Code.refusal() {\n\t\t\td.refuse(to, err)\n", "\t\tif false {\n\t\t\td.refuse(to, err)\n", "a broadcast's refusals give no security event"},

	{"30", "router/router.go", "return to.ID == viewer.ID || r.sandbox.Load().admits(viewer, to)", "return true || to.ID == viewer.ID", "everybody sees everybody"},
	{"30", "registry/registry.go", "return v.r.cards(func() *index { return v.r.byCap[id] }, v.allow)", "return v.r.FindByCapability(id)", "queries by capability are not filtered"},
	{"30", "registry/registry.go", "\tif err != nil || !v.allow(card.Identity()) {\n", "\tif err != nil {\n", "queries by id are not filtered"},

	{"31", "router/router.go", "\tif to.Tier == d.policy.from.Tier {\n", "\tif to.Tier >= d.policy.from.Tier {\n", "only messages upwards are logged"},
	{"31", "router/router.go", "append(between, d.betweenTiers(to, now))", "append(between[:0], d.betweenTiers(to, now))[:0]", "broadcasts are not logged"},
	{"31", "router/router.go", "\tif d.r.opts.Audit == nil {\n", "\tif event.Type == telemetry.CrossTier {\n\t\treturn\n\t}\n\tif d.r.opts.Audit == nil {\n", "the audit does not get them"},

	{"32", "telemetry/recorder.go", "\t\tcountType(&c.receivedByType, e.MessageType)\n", "\t\tcountType(&c.sentByType, e.MessageType)\n", "received messages count as sent by type"},
	{"32", "telemetry/recorder.go", "\t\tc.TotalMessagesReceived++\n", "", "received messages are not counted"},
	{"32", "telemetry/recorder.go", "return sum / float64(n)", "return sum", "the average is a sum"},

	{"33", "telemetry/recorder.go", "\tr.tools[name]++\n", "\tr.tools[name] = 1\n", "each tool was called once"},
	{"33", "telemetry/recorder.go", "!known && len(r.tools) >= maxTools {", "!known && len(r.tools) >= 1 {", "all tools but one are others"},

	{"34", "telemetry/event.go", "`json:\"result,omitempty\"`", "`json:\"-\"`", "results are not written"},
	{"34", "telemetry/event.go", "Duration    float64         `json:\"duration\"`", "Duration    float64         `json:\"-\"`", "durations are not written"},
}
