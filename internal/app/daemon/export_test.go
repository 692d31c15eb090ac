package daemon

// OpenLogWithLimit opens a log that turns over early.
func OpenLogWithLimit(path string, limit int64) (*LogFile, error) {
	l, err := OpenLog(path)
	if err == nil {
		l.limit = limit
	}
	return l, err
}

// HubName is the hub's name on its bus.
var HubName = hubName
