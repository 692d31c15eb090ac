// Program stands for Parley in the tests of the release: it answers what a release asks of it.
package main

import (
	"os"
	"path/filepath"
)

func main() {
	switch os.Args[1] {
	case "version":
		os.Stdout.WriteString(`{"version":"devel"}`)
	case "man":
		page := filepath.Join(os.Args[2], filepath.Base(os.Args[0])+".1")
		if os.MkdirAll(os.Args[2], 0o755) != nil || os.WriteFile(page, []byte("page"), 0o644) != nil {
			os.Exit(1)
		}
	case "completion":
		os.Stdout.WriteString("completion for " + os.Args[2])
	}
}
