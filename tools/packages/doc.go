// Packages makes the packages of a release that need libraries which Parley does not: deb and rpm for Linux, and the container
// image as an OCI layout in one file. These libraries are in tools/packages.mod, so that they are not among Parley's
// dependencies. tools/release runs it:
//
//	go run -modfile=tools/packages.mod tools/packages/{main,linux,image}.go \
//		-version 1.2.3 -time 1790000000 -work DIR -out DIR -arch amd64,arm64
//
// DIR/linux-ARCH has the program, DIR/docs the documents of every archive. This file stands for the program without the libraries.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "packages: go run ./tools/release runs this, with libraries of its own")
	os.Exit(2)
}
