package runner

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// Driver returns the agent of a completed definition. It implements one protocol.
type Driver func(def Definition, opts Options) (Agent, error)

// Options are common to all agents of a hub. The zero value is valid.
type Options struct {
	// Drivers are the drivers by name besides exec and echo, see package drivers.
	Drivers map[string]Driver
	// Owner marks every process of this hub's agents, so that a later run can find the
	// processes of a killed one (process.SweepOwner). It holds neither a dot nor a
	// colon. Empty disables the sweep.
	Owner string
	// Environ is the environment of which agents receive a part; nil is the hub's own.
	Environ []string
}

// Open completes def and returns its agent. It starts no process. The error is an
// *Error with CodeConfig.
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
