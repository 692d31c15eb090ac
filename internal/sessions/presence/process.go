package presence

// Process is a process that cannot be confused with a later one of the same id.
type Process struct {
	PID int `json:"pid"`
	// Start is when it started, in the system's own terms (Linux: field 22 of /proc/PID/stat); "" where that is unknown.
	Start string `json:"start,omitempty"`
}

// IsAncestorOf reports whether a process was started by this one, directly or not, and all between them still run.
func (p Process) IsAncestorOf(pid int) bool {
	for range maxDepth {
		parent, _ := parentOf(pid)
		if parent <= 1 {
			return false
		}
		if parent == p.PID {
			return true
		}
		pid = parent
	}
	return false
}

// maxDepth bounds the search of [Process.IsAncestorOf], maxAncestors that of [SessionOf].
const (
	maxDepth     = 100
	maxAncestors = 8
)

// shells are the programs that CLIs start commands with. They are not the session.
var shells = map[string]bool{"sh": true, "bash": true, "dash": true, "zsh": true, "fish": true, "ash": true, "busybox": true, "env": true, "timeout": true}

// SessionOf returns the session that has started the process pid: its nearest ancestor that is no shell. It is zero where the
// system does not tell.
func SessionOf(pid int) Process {
	for range maxAncestors {
		parent, name := parentOf(pid)
		if parent <= 1 {
			break
		}
		if !shells[name] {
			return Running(parent)
		}
		pid = parent
	}
	return Process{}
}
