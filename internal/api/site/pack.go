package site

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"
)

// Pack compresses the files of a site, which must be texts, for a release's program. The same files give the same bytes.
func Pack(files map[string][]byte) ([]byte, error) {
	texts := map[string]string{}
	for name, content := range files {
		if !utf8.Valid(content) {
			return nil, fmt.Errorf("%s is no text in UTF-8: the site of a release has texts only", name)
		}
		texts[name] = string(content)
	}
	encoded, err := json.Marshal(texts)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	zw, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := zw.Write(encoded); err != nil {
		return nil, err
	}
	err = zw.Close()
	return packed.Bytes(), err
}

// unpack returns the files that [Pack] has compressed.
func unpack(packed []byte) (map[string][]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	encoded, err := io.ReadAll(zr)
	if err != nil {
		return nil, err
	}
	var texts map[string]string
	if err := json.Unmarshal(encoded, &texts); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, text := range texts {
		files[name] = []byte(text)
	}
	return files, nil
}
