package duplex

import (
	"slices"

	"github.com/parleyhub/parley/internal/hub/runner"
)

// Bounds of permission requests.
const (
	maxAsking  = 32   // requests of a turn that wait for an answer; more are refused
	maxOptions = 32   // options of a request
	maxLabel   = 1024 // bytes of a title, name or id
)

// Decision is the answer to a permission request. The zero value is no decision: the
// turn ended, no user could be asked, or no option fits.
type Decision struct {
	Option  runner.PermissionOption // the chosen one; its Kind says whether it allows
	Message string                  // for the agent, may be empty
}

// Answered reports whether an option was chosen.
func (d Decision) Answered() bool { return d.Option.ID != "" }

// Allowed reports whether the request is granted.
func (d Decision) Allowed() bool {
	return d.Answered() && slices.Contains(runner.Allow, d.Option.Kind)
}

// byPolicy answers a request by Definition.Permissions; ok is false if the user
// must be asked.
func byPolicy(policy string, options []runner.PermissionOption) (d Decision, ok bool) {
	switch policy {
	case runner.PermissionsAllow:
		if o, found := runner.Choose(options, runner.Allow); found {
			return Decision{Option: o}, true
		}
		return refuse(options, "the agent offers no way to allow this"), true
	case runner.PermissionsDeny:
		return refuse(options, "this agent's configuration denies every request"), true
	default:
		return Decision{}, false
	}
}

// refuse chooses the option that denies. Without one there is no decision, which every
// protocol treats as a denial.
func refuse(options []runner.PermissionOption, message string) Decision {
	o, _ := runner.Choose(options, runner.Reject)
	return Decision{Option: o, Message: message}
}

// bounded shortens the request's lists and labels. It omits options of an unknown kind
// or without an id, because their effect is unknown.
func bounded(req runner.PermissionRequest) runner.PermissionRequest {
	options := make([]runner.PermissionOption, 0, min(len(req.Options), maxOptions))
	for _, o := range req.Options {
		if len(options) == maxOptions {
			break
		}
		if o.ID == "" || len(o.ID) > maxLabel || !slices.Contains(runner.Allow, o.Kind) && !slices.Contains(runner.Reject, o.Kind) {
			continue
		}
		o.Name = clip(o.Name, maxLabel)
		options = append(options, o)
	}
	req.Options = options
	req.Title = clip(req.Title, maxLabel)
	req.Tool = labelled(req.Tool)
	return req
}
