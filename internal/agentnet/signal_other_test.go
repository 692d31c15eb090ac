//go:build !unix

package agentnet_test

// suspend cannot stop a process here: the tests go on without.
func suspend(int) bool { return false }

func resume(int) {}
