package runner

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// Driver makes an agent of a completed definition: it speaks one protocol.
type Driver func(def Definition, opts Options) (Agent, error)

// Options are what all agents of a hub have in common. The zero value works.
type Options struct {
	// Drivers are the drivers by name, beside exec and echo, which are always
	// there: package drivers has all of them.
	Drivers map[string]Driver
	// Owner marks every process of this hub's agents, so that a later run finds
	// what a killed one left behind (process.SweepOwner). It holds neither a dot
	// nor a colon; empty is allowed and gives that up.
	Owner string
	// Environ is the environment that agents get a part of; nil is the hub's own.
	Environ []string
}

// Open completes def and makes an agent of it. It starts nothing. The error is
// an *Error with CodeConfig.
func Open(def Definition, opts Options) (Agent, error) {
	def, err := def.Complete()
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(opts.Owner, ".:\x00") {
		return nil, configError("owner", "%q must not hold a dot or a colon", opts.Owner)
	}
	if opts.Environ == nil {
		opts.Environ = os.Environ()
	}
	drivers := map[string]Driver{DriverExec: openExec, DriverEcho: openEcho}
	maps.Copy(drivers, opts.Drivers)
	open, ok := drivers[def.Driver]
	if !ok {
		return nil, configError("driver", "%q is not one of %s", def.Driver,
			strings.Join(slices.Sorted(maps.Keys(drivers)), ", "))
	}
	return open(def, opts)
}
