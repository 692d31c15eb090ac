//go:build !unix

package agentnet_test

// suspend reports false: processes cannot be suspended here, and tests skip that fault.
func suspend(int) bool { return false }

func resume(int) {}
