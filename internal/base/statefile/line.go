package statefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
)

// The end of a line with a checksum: a last field, which former programs ignore.
const (
	lineSumBegin = `,"sum":"`
	lineSumEnd   = `"}`
	lineSumSize  = len(lineSumBegin) + 16 + len(lineSumEnd)
)

// SignLine adds a checksum to a line, a JSON object with a field, without its newline. It may use the line's memory.
func SignLine(object []byte) []byte {
	b := bytes.TrimSuffix(object, []byte("}"))
	return append(b, lineSum(b)...)
}

func lineSum(b []byte) string {
	sum := sha256.Sum256(b)
	return lineSumBegin + hex.EncodeToString(sum[:8]) + lineSumEnd
}

// CheckLine checks the checksum of a line without its newline. It reports whether the line has one: those of former programs have none.
func CheckLine(line []byte) (signed bool, err error) {
	n := len(line) - lineSumSize
	if n < 0 || differ(line[n:n+len(lineSumBegin)], []byte(lineSumBegin)) > 1 { // a bit of the field's name may have flipped
		return false, nil
	}
	if lineSum(line[:n]) != string(line[n:]) {
		return true, errSum
	}
	return true, nil
}
