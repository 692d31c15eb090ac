// Installs tries a release as a stranger does: in an empty root that has the essential packages of Debian, curl, and neither Go nor a
// compiler. It installs by install.sh from a file server, by dpkg, by rpm, and by npm and npx from a registry on this machine, measures the
// time from the download to the answer of the first message, removes everything, and lists what is left.
//
//	go run ./tools/installs -dist dist
//	go run ./tools/installs -dist dist -only deb,npm -within 0
//
// The root is made of the files of this machine's packages, so nothing is downloaded; this machine must be a Debian or an Ubuntu,
// and the user root. A step that takes longer than -within, or anything left but the user's data, fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

// options are what the flags say.
type options struct {
	dist   string
	only   []string
	within time.Duration
	first  bool
}

func main() {
	var o options
	flag.StringVar(&o.dist, "dist", "dist", "the directory of the release")
	only := flag.String("only", "install.sh,deb,rpm,npm,npx", "the ways to install, separated by commas")
	flag.DurationVar(&o.within, "within", 10*time.Second, "the longest time from the download to the first answer, 0 for no limit")
	flag.BoolVar(&o.first, "first", false, "run before the other programs of this machine, to measure what an idle one needs")
	flag.Parse()
	o.only = strings.Split(*only, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := try(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "installs: %v\n", err)
		os.Exit(1)
	}
}
