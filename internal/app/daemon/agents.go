package daemon

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
)

// ownerOf names the processes of a data directory's hub, so that the next hub
// finds what a killed one left behind and touches no other's.
func ownerOf(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return "hub-" + hex.EncodeToString(sum[:8])
}

// sameToken compares in constant time. No token is configured as "".
func sameToken(given, configured string) bool {
	return configured == "" || subtle.ConstantTimeCompare([]byte(given), []byte(configured)) == 1
}
