package main

import (
	"container/heap"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// heartbeats come once in a minute, the default.
const heartbeats = 1.0

// kind is a kind of call, as the busiest server sees it.
type kind struct {
	name string
	rate float64 // a second
	cost cost
}

// forecast is what all agents together take of the busiest server, and of a hub's computer.
type forecast struct {
	Agents    int     `json:"agents"`
	Views     string  `json:"views"`     // who looks for agents
	Messages  float64 `json:"messages"`  // of the busiest server, a second
	Processor float64 `json:"processor"` // the part of its time that is used; above 1 it falls behind
	Network   float64 `json:"network"`
	Memory    float64 `json:"memory"`
	Computer  float64 `json:"computerBytes"` // memory of a hub's computer for what its processes know of agents
	// Median and Late are how long half and 99 % of the heartbeats wait for a processor.
	Median time.Duration `json:"median"`
	Late   time.Duration `json:"late"`
	// First is the limit that comes first, and At with how many agents.
	First string `json:"first"`
	At    int    `json:"at"`
}

// views are who asks for the registry: each process keeps what it knows, and reads what has changed since.
var views = []string{"each agent's process", "each hub for its agents"}

// forecasts are those of an arrangement: with a view for each agent, and with one for each hub.
func forecasts(a arrangement, c costs, o options) (list []forecast) {
	for _, view := range views {
		list = append(list, foresee(a, c, o, view))
	}
	return list
}

func foresee(a arrangement, c costs, o options, view string) forecast {
	hubs := o.hubs
	if a.nodes == 1 {
		hubs = 1 // each has its own server
	}
	n := hubs * o.agents
	f := demand(a, c, o, view, n)
	f.Median, f.Late = simulate(calls(a, c, o, view, n), o.cores, rand.New(rand.NewPCG(1, uint64(n))))
	f.First, f.At = limit(a, c, o, view)
	return f
}

// calls are those of n agents that come to the busiest server: the leader of the registry and of the queues.
func calls(a arrangement, c costs, o options, view string, n int) []kind {
	agents := float64(n)
	lookers, each := agents, o.discover/60
	if view != views[0] {
		lookers = math.Ceil(agents / float64(o.agents))
		each = min(o.discover/60*float64(o.agents), 1) // a hub answers from what it knows for a second
	}
	looks := lookers * each
	changed := agents // since a process looked before: all of them, after a minute
	if each > 0 {
		changed = agents * min(1, heartbeats/60/each)
	}
	// Entries are read from any replica of the registry, and any server of a cluster leads an inbox. Mail is measured from one cluster to
	// another where there are two, and takes something of both.
	nodes, ends := float64(a.nodes), float64(min(a.clusters, 2))/float64(a.clusters)
	return []kind{
		{name: "heartbeats", rate: agents * heartbeats / 60, cost: c.Heartbeat},
		{name: "looks", rate: looks, cost: c.Discover},
		{name: "what looks read", rate: looks / nodes, cost: c.Changed.times(changed)},
		{name: "mail", rate: agents * o.mail / 60 * ends / nodes, cost: c.Mail},
		{name: "work", rate: agents * o.work / 60, cost: c.Item},
	}
}

func (c cost) times(n float64) cost {
	return cost{c.Messages * n, c.Bytes * n, time.Duration(float64(c.Processor) * n), c.Of * n}
}

// demand is what n agents take, without a simulation.
func demand(a arrangement, c costs, o options, view string, n int) forecast {
	f := forecast{Agents: n, Views: view}
	for _, k := range calls(a, c, o, view, n) {
		f.Messages += k.rate * k.cost.Messages
		f.Processor += k.rate * k.cost.Processor.Seconds() / float64(o.cores)
		f.Network += k.rate * k.cost.Bytes / o.network
	}
	agents, servers := float64(n), float64(a.clusters*a.nodes)
	inboxes := agents / float64(a.clusters) // each is on all servers of a cluster
	f.Memory = (agents*c.Entry + inboxes*c.Inbox + agents/servers*c.Connection) / o.memory
	f.Computer = agents * c.View
	if view == views[0] {
		f.Computer *= float64(min(o.agents, n))
	}
	return f
}

// most is what is used most, of all that has a limit.
func (f forecast) most(o options) (name string, part float64) {
	parts := map[string]float64{"processor of the busiest server": f.Processor, "network of the busiest server": f.Network,
		"memory of the busiest server": f.Memory, "memory of a hub's computer": f.Computer / o.memory}
	for _, k := range slices.Sorted(maps.Keys(parts)) {
		if parts[k] > part {
			name, part = k, parts[k]
		}
	}
	return name, part
}

// limit finds with how many agents something is used up first. The agents of a hub stay as many; hubs are added, and where each has
// its own server, agents.
func limit(a arrangement, c costs, o options, view string) (name string, n int) {
	used := func(n int) (string, float64) {
		at := o
		if a.nodes == 1 {
			at.agents = n
		}
		return demand(a, c, at, view, n).most(at)
	}
	const atMost = 1 << 40
	if name, part := used(atMost); part <= 1 {
		return name, atMost
	}
	n = sort.Search(atMost, func(n int) bool { _, part := used(n); return part > 1 })
	name, _ = used(n)
	return name, n - 1
}

// span is how much virtual time is simulated; of it, the first tenth does not count.
const span = 60 * time.Second

// simulate has calls come at random to a server with so many processors, each of which takes one call after the other, and returns how long half
// and 99 % of the calls of the first kind wait.
func simulate(kinds []kind, cores int, random *rand.Rand) (median, late time.Duration) {
	var total float64
	for _, k := range kinds {
		total += k.rate
	}
	if total == 0 {
		return 0, 0
	}
	free := make(processors, cores) // when each is free
	var waits []time.Duration
	for now := time.Duration(0); now < span; {
		now += time.Duration(random.ExpFloat64() / total * float64(time.Second))
		i := choose(kinds, random.Float64()*total)
		begin := max(now, free[0])
		free[0] = begin + time.Duration(random.ExpFloat64()*float64(kinds[i].cost.Processor))
		heap.Fix(&free, 0)
		if i == 0 && now > span/10 {
			waits = append(waits, begin-now)
		}
	}
	if len(waits) == 0 {
		return 0, 0
	}
	slices.Sort(waits)
	return waits[len(waits)/2], waits[len(waits)*99/100]
}

// choose returns the kind to which a number below the sum of all rates belongs.
func choose(kinds []kind, at float64) int {
	for i, k := range kinds {
		if at -= k.rate; at < 0 {
			return i
		}
	}
	return 0
}

// processors are the times at which processors are free, as a heap.
type processors []time.Duration

func (p processors) Len() int           { return len(p) }
func (p processors) Less(i, j int) bool { return p[i] < p[j] }
func (p processors) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *processors) Push(any)          { panic("a server has no further processor") }
func (p *processors) Pop() any          { panic("a server loses no processor") }
