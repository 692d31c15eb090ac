package duplex

import (
	"github.com/parleyhub/parley/internal/hub/runner"
)

// Bounds of permission requests.
const (
	// maxAsking is how many requests of a turn wait for an answer at once: more
	// are refused.
	maxAsking = 32
	// maxOptions is how many options of a request are offered.
	maxOptions = 32
	// maxLabel is how many bytes an agent's title or name may have.
	maxLabel = 1024
)

// Decision is the answer to a permission request. The zero value stands for
// none: the turn ended, nobody could be asked, or there was no fitting option.
type Decision struct {
	// Option is the chosen one; its Kind says whether it allows.
	Option runner.PermissionOption
	// Message is a word to the agent, may be empty.
	Message string
}

// Answered reports whether an option was chosen.
func (d Decision) Answered() bool { return d.Option.ID != "" }

// Allowed reports whether the request is granted.
func (d Decision) Allowed() bool { return d.Answered() && allows(d.Option.Kind) }

func allows(k runner.PermissionKind) bool {
	return k == runner.AllowOnce || k == runner.AllowAlways
}

// choose takes the first option of the first kind that there is. Ids differ
// between agents, kinds do not.
func choose(options []runner.PermissionOption, kinds ...runner.PermissionKind) (runner.PermissionOption, bool) {
	for _, k := range kinds {
		for _, o := range options {
			if o.Kind == k {
				return o, true
			}
		}
	}
	return runner.PermissionOption{}, false
}

// byPolicy answers a request by Definition.Permissions; ok is false where a
// person is to be asked.
func byPolicy(policy string, options []runner.PermissionOption) (d Decision, ok bool) {
	switch policy {
	case runner.PermissionsAllow:
		// Once before always: what is allowed for good is the agent's memory,
		// which a later change of the definition would not reach.
		if o, found := choose(options, runner.AllowOnce, runner.AllowAlways); found {
			return Decision{Option: o}, true
		}
		return refuse(options, "the agent offers no way to allow this"), true
	case runner.PermissionsDeny:
		return refuse(options, "this agent's configuration denies every request"), true
	default:
		return Decision{}, false
	}
}

// refuse picks the option that denies; without one the decision is none, which
// every protocol takes as a denial.
func refuse(options []runner.PermissionOption, message string) Decision {
	o, _ := choose(options, runner.RejectOnce, runner.RejectAlways)
	return Decision{Option: o, Message: message}
}

// bounded returns the request with its lists and labels cut to what is passed
// on. Options that say nothing of their kind, or have no id, are left out: what
// they do is not known.
func bounded(req runner.PermissionRequest) runner.PermissionRequest {
	options := make([]runner.PermissionOption, 0, min(len(req.Options), maxOptions))
	for _, o := range req.Options {
		if len(options) == maxOptions {
			break
		}
		if o.ID == "" || len(o.ID) > maxLabel || !known(o.Kind) {
			continue
		}
		o.Name = clip(o.Name, maxLabel)
		options = append(options, o)
	}
	req.Options = options
	req.Title = clip(req.Title, maxLabel)
	req.Tool.Title = clip(req.Tool.Title, maxLabel)
	req.Tool.Name = clip(req.Tool.Name, maxLabel)
	return req
}

func known(k runner.PermissionKind) bool {
	switch k {
	case runner.AllowOnce, runner.AllowAlways, runner.RejectOnce, runner.RejectAlways:
		return true
	default:
		return false
	}
}
