package site

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"unicode/utf8"
)

// contents are the files of a site by name. JSON has a text at its own length, and other bytes at four thirds of theirs.
type contents struct {
	Texts    map[string]string `json:"texts"`
	Pictures map[string][]byte `json:"pictures"`
}

// Pack compresses the files of a site for a release's program. The same files give the same bytes.
func Pack(files map[string][]byte) ([]byte, error) {
	c := contents{map[string]string{}, map[string][]byte{}}
	for name, content := range files {
		if utf8.Valid(content) {
			c.Texts[name] = string(content)
		} else {
			c.Pictures[name] = content
		}
	}
	encoded, err := json.Marshal(c)
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
	var c contents
	if err := json.Unmarshal(encoded, &c); err != nil {
		return nil, err
	}
	files := make(map[string][]byte, len(c.Texts)+len(c.Pictures))
	maps.Copy(files, c.Pictures)
	for name, text := range c.Texts {
		files[name] = []byte(text)
	}
	return files, nil
}
