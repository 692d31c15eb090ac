//go:build ignore

package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	var p packages
	flag.StringVar(&p.version, "version", "", "the version")
	seconds := flag.Int64("time", 0, "the time of all files, in seconds since 1970")
	flag.StringVar(&p.work, "work", "", "the directory with the programs and the documents")
	flag.StringVar(&p.out, "out", "", "the directory for the packages")
	flag.StringVar(&p.formats, "formats", "deb,rpm,image", "the kinds of packages, separated by commas")
	arches := flag.String("arch", "amd64", "the architectures, separated by commas")
	flag.Parse()
	p.at = time.Unix(*seconds, 0).UTC()
	if err := p.write(strings.Split(*arches, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

// packages are the packages to make.
type packages struct {
	version, work, out, formats string
	at                          time.Time
}

func (p packages) write(arches []string) error {
	for _, format := range strings.Split(p.formats, ",") {
		if format == "image" {
			if err := p.image(arches); err != nil {
				return fmt.Errorf("image: %w", err)
			}
			continue
		}
		for _, arch := range arches {
			if err := p.linux(format, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", format, arch, err)
			}
		}
	}
	return nil
}
