package rawjson_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

// BenchmarkAgainstJSONText reports the time of jsontext over that of the package's own
// scanner and quoting ("jsontext/own"), measured alternately in one process; ns/op is
// the sum. A ratio below 1 everywhere would make the package's own code superfluous.
func BenchmarkAgainstJSONText(b *testing.B) {
	compare := func(name string, own, library func()) {
		b.Run(name, func(b *testing.B) {
			var ours, theirs time.Duration
			for b.Loop() {
				start := time.Now()
				for range 16 {
					own()
				}
				middle := time.Now()
				for range 16 {
					library()
				}
				ours += middle.Sub(start)
				theirs += time.Since(middle)
			}
			b.ReportMetric(float64(theirs)/float64(ours), "jsontext/own")
		})
	}
	decoder := jsontext.NewDecoder(new(bytes.Buffer))
	for _, size := range []int{64, 1 << 10, 64 << 10} {
		for kind, data := range map[string][]byte{"text": textOf(size), "records": recordsOf(size)} {
			own := func() {
				if err := rawjson.Check(data, maxDepth); err != nil {
					b.Fatal(err)
				}
			}
			compare(fmt.Sprintf("check/%s/%d", kind, size), own, func() {
				if !depthBounded(decoder, data) {
					b.Fatal("refused")
				}
			})
			compare(fmt.Sprintf("check without a depth bound/%s/%d", kind, size), own, func() {
				if !jsontext.Value(data).IsValid(jsontext.AllowDuplicateNames(true)) {
					b.Fatal("refused")
				}
			})
		}
		message := fmt.Appendf(nil, `{"id":"1","sender":"sun","recipient":"mars","type":"request","timestamp":1,"payload":%s}`, textOf(size))
		compare(fmt.Sprintf("members/%d", size), func() {
			if _, err := rawjson.Scan(message, maxDepth, func(_, _ []byte) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}, func() {
			decoder.Reset(bytes.NewBuffer(message), jsontext.AllowDuplicateNames(true))
			_, err := decoder.ReadToken()
			for err == nil && decoder.PeekKind() == jsontext.KindString {
				if _, err = decoder.ReadToken(); err == nil {
					_, err = decoder.ReadValue()
				}
			}
			if err != nil {
				b.Fatal(err)
			}
		})
	}
	buf := make([]byte, 0, 128)
	compare("quote", func() { buf = rawjson.AppendString(buf[:0], "0190d5a2-7c3b-7def-8123-456789abcdef") },
		func() { buf, _ = jsontext.AppendQuote(buf[:0], "0190d5a2-7c3b-7def-8123-456789abcdef") })
}

// depthBounded checks data token by token, since the library has no depth bound.
func depthBounded(d *jsontext.Decoder, data []byte) bool {
	d.Reset(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	for {
		if _, err := d.ReadToken(); err != nil || d.StackDepth() > maxDepth {
			return err != nil && d.InputOffset() == int64(len(data))
		}
	}
}

func textOf(size int) []byte { return []byte(`{"text":"` + strings.Repeat("x", size) + `"}`) }

func recordsOf(size int) []byte {
	data := []byte(`[`)
	for len(data) < size {
		data = fmt.Appendf(data, `{"id":%d,"name":"agent-%[1]d","ok":true,"tags":["a","b"]},`, len(data))
	}
	return append(data, "null]"...)
}
