package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/parleyhub/parley/internal/api/conformance"
	"github.com/parleyhub/parley/internal/app/daemon"
	"github.com/parleyhub/parley/internal/app/version"
	"github.com/parleyhub/parley/internal/config"
)

// conformanceCommand runs a hub for the official A2A test kits, and at /mcp an MCP server for
// the official MCP test suite. It is hidden: only tests need it.
func (a *app) conformanceCommand() *cobra.Command {
	var httpPort, grpcPort int
	cmd := command("conformance", "Run servers for the official A2A test kits and MCP test suite",
		func(cmd *cobra.Command, _ []string) error {
			return a.conformance(cmd.Context(), httpPort, grpcPort)
		})
	cmd.Hidden = true
	cmd.Flags().IntVar(&httpPort, "http-port", 9999, "the port to serve on; 0 lets the system choose")
	cmd.Flags().IntVar(&grpcPort, "grpc-port", 0, "the port for gRPC; 0 for none")
	return cmd
}

func (a *app) conformance(ctx context.Context, httpPort, grpcPort int) (err error) {
	ctx, cancel := a.interruptible(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "parley-conformance-")
	if err != nil {
		return fmt.Errorf("create a data directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(httpPort)))
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	defer ln.Close()
	opts := conformance.Options{
		DataDir: dir, BaseURL: "http://" + ln.Addr().String(), Version: version.String(),
		Logger: daemon.NewLogger(a.stderr, config.Logging{Level: "warn"}, isTerminal(a.stderr)),
	}
	if grpcPort != 0 {
		opts.GRPCAddress = net.JoinHostPort("127.0.0.1", strconv.Itoa(grpcPort))
	}
	suite, err := conformance.New(ctx, opts)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, suite.Close(ctx))
	}()
	return a.serveSuite(ctx, suite, ln, opts)
}

func (a *app) serveSuite(ctx context.Context, suite *conformance.Suite, ln net.Listener, opts conformance.Options) error {
	failed := make(chan error, 2) // one for each server
	web := &http.Server{Handler: suite.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { failed <- web.Serve(ln) }()
	defer web.Close()
	if opts.GRPCAddress != "" {
		grpcListener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", opts.GRPCAddress)
		if err != nil {
			return fmt.Errorf("listen for gRPC: %w", err)
		}
		s := suite.GRPC()
		go func() { failed <- s.Serve(grpcListener) }()
		defer s.Stop()
	}
	fmt.Fprintf(a.stdout, "%s\n", opts.BaseURL)
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serve the test kit's agent: %w", err)
	}
}
