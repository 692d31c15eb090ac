package jsonrpc_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/parleyhub/parley/internal/api/jsonrpc"
)

func TestABodyInMemoryIsNotCopied(t *testing.T) {
	data := []byte("0123456789")
	r := httptest.NewRequest("POST", "/", nil)
	r.Body = jsonrpc.NewBody(data)
	if _, err := io.CopyN(io.Discard, r.Body, 2); err != nil {
		t.Fatal(err)
	}
	rest, err := jsonrpc.BodyOf(nil, r, 8)
	if err != nil || string(rest) != "23456789" || &rest[0] != &data[2] {
		t.Errorf("%q, %v", rest, err)
	}
	if rest, err := jsonrpc.BodyOf(nil, r, 8); err != nil || len(rest) != 0 || r.Body.Close() != nil {
		t.Errorf("%q, %v", rest, err)
	}
	for _, data := range []string{"abc", "123456789"} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(data))
		if data == "123456789" {
			r.Body = jsonrpc.NewBody([]byte(data))
		}
		got, err := jsonrpc.BodyOf(httptest.NewRecorder(), r, 8)
		var tooLarge *http.MaxBytesError
		if data == "abc" && (err != nil || string(got) != "abc") || data != "abc" && !errors.As(err, &tooLarge) {
			t.Errorf("%q, %v", got, err)
		}
	}
}
