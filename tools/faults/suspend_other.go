//go:build !unix

package main

// suspend does nothing but call during: processes cannot be suspended here.
func (h *hub) suspend(during func()) error {
	during()
	return nil
}
