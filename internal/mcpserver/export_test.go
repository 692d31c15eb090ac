package mcpserver

import (
	"testing"
	"time"
)

// MaxTokens is how many sessions clients can hold by tokens.
const MaxTokens = maxTokens

// ReportEvery makes waits report their progress so often.
func ReportEvery(t *testing.T, d time.Duration) {
	before := progressEvery
	progressEvery = d
	t.Cleanup(func() { progressEvery = before })
}
