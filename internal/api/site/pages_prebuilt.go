//go:build prebuiltsite

package site

import _ "embed"

// packed is the site of the release. tools/release makes it and lays it over the sources (-overlay) when it builds the program.
//
//go:embed pages.json.gz
var packed []byte

// pages unpacks the site, whose version is that of the program.
func pages(string) map[string][]byte {
	files, err := unpack(packed)
	if err != nil {
		panic(err) // the program is damaged
	}
	return files
}
