//go:build !linux

package daemon

import "github.com/parleyhub/parley/internal/metrics"

// processMetrics returns when this process was started.
func processMetrics() []metrics.Family { return []metrics.Family{startMetric()} }
