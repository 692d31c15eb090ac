package bus

import (
	"bytes"
	"strconv"
)

// frames finds the operations in one direction of a NATS connection.
type frames struct {
	line []byte // the beginning of a control line whose end is yet to come
	skip int    // bytes of a payload, with its line break, that are yet to come
}

// whole reports whether the last operation is complete.
func (f *frames) whole() bool { return f.skip == 0 && len(f.line) == 0 }

// scan calls visit with the words of each control line that ends in p. from and to are its position with its line break;
// from is negative if it has begun before p.
func (f *frames) scan(p []byte, visit func(words [][]byte, from, to int)) {
	for at := 0; at < len(p); {
		if f.skip > 0 {
			n := min(f.skip, len(p)-at)
			f.skip, at = f.skip-n, at+n
			continue
		}
		length := bytes.IndexByte(p[at:], '\n')
		if length < 0 {
			f.line = append(f.line, p[at:]...)
			return
		}
		from, to := at, at+length+1
		line := p[from:to]
		if len(f.line) > 0 {
			line, from = append(f.line, line...), -1
		}
		f.line, at = f.line[:0], to
		words := bytes.Fields(line)
		f.skip = payload(words)
		visit(words, from, to)
	}
}

// payload returns how many bytes follow a control line.
func payload(words [][]byte) int {
	if len(words) == 0 {
		return 0
	}
	switch string(words[0]) {
	case "PUB", "HPUB", "MSG", "HMSG":
		n, _ := strconv.Atoi(string(words[len(words)-1])) // both ends write a number
		return n + len("\r\n")
	}
	return 0
}
