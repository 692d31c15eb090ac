//go:build !unix

package ralph

// syncDir does nothing: directories cannot be synced here, and a rename reaches the
// disk when the system sees fit.
func syncDir(string) error { return nil }
