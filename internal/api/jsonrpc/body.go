package jsonrpc

import (
	"bytes"
	"io"
	"net/http"
)

// body is the body of a request that has been read.
type body struct {
	*bytes.Reader
	data []byte
}

// Close implements io.Closer.
func (body) Close() error { return nil }

// NewBody returns data as the body of a request. [BodyOf] returns it without a copy.
func NewBody(data []byte) io.ReadCloser { return body{bytes.NewReader(data), data} }

// BodyOf returns the rest of a request's body, which the caller must not change; it is empty afterwards. A body of more than limit bytes is an
// [http.MaxBytesError].
func BodyOf(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	read, ok := r.Body.(body)
	if !ok {
		return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	rest := read.data[len(read.data)-read.Len():]
	if int64(len(rest)) > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	r.Body = NewBody(nil) // so that a long request does not keep it
	return rest, nil
}
