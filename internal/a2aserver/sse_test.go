package a2aserver_test

import (
	"bufio"
	"io"
	"strings"
)

// sseReader returns a function that reads the data of the next event, "" at the end.
func sseReader(r io.Reader) func() string {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	return func() string {
		for scanner.Scan() {
			if data, ok := strings.CutPrefix(scanner.Text(), "data: "); ok {
				return data
			}
		}
		return ""
	}
}
