package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// program is a command that is run again and again.
type program struct {
	path func() (string, error)
	args []string
	hub  func() (*hub, error) // in whose home it runs; nil for none
}

// startRows are starts of commands.
func (r *rig) startRows() []row {
	version := program{r.parley, []string{"--version"}, nil}
	hello := program{r.hello, nil, nil}
	send := program{r.parley, []string{"send", "echo", "hi"}, r.commit}
	bareSend := program{r.bareSend, nil, r.commit}
	server := program{r.parley, []string{"mcp"}, r.commit}
	tool := program{r.tool, nil, nil}
	return []row{
		{name: "--version, processor time", unit: "ms", less: true,
			ours: []contender{version.runs("parley", processorTime)}, peers: []contender{hello.runs("hello", processorTime)}},
		{name: "--version", unit: "ms", less: true,
			ours: []contender{version.runs("parley", wallTime)}, peers: []contender{hello.runs("hello", wallTime)}},
		{name: "send to echo, processor time", unit: "ms", less: true,
			ours: []contender{send.runs("parley", processorTime)}, peers: []contender{bareSend.runs("thin client", processorTime)}},
		{name: "send to echo", unit: "ms", less: true,
			ours: []contender{send.runs("parley", wallTime)}, peers: []contender{bareSend.runs("thin client", wallTime)}},
		{name: "start of an MCP server to initialize", unit: "ms", less: true,
			ours: []contender{server.runs("parley mcp", untilInitialize)}, peers: []contender{tool.runs("go-sdk", untilInitialize)}},
	}
}

// runs returns a contender that runs the command again and again: the median, in ms.
func (p program) runs(name string, of func(*exec.Cmd) (time.Duration, error)) contender {
	return contender{name, func(ctx context.Context, slice time.Duration) (float64, error) {
		path, err := p.path()
		if err != nil {
			return 0, err
		}
		args, dir, env := p.args, "", os.Environ()
		if p.hub != nil {
			h, err := p.hub()
			if err != nil {
				return 0, err
			}
			dir, env = h.home, h.env
			if args == nil {
				args = []string{h.socket()}
			}
		}
		var took []float64
		for began := time.Now(); len(took) < 5 || time.Since(began) < slice; {
			cmd := exec.CommandContext(ctx, path, args...)
			cmd.Dir, cmd.Env = dir, env
			d, err := of(cmd)
			if err != nil {
				return 0, err
			}
			took = append(took, d.Seconds()*1e3)
		}
		return median(took), nil
	}}
}

// processorTime runs a command and returns its processor time, user and system.
func processorTime(cmd *exec.Cmd) (time.Duration, error) {
	_, err := wallTime(cmd)
	if err != nil {
		return 0, err
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// wallTime runs a command and returns how long it took.
func wallTime(cmd *exec.Cmd) (time.Duration, error) {
	began := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	return time.Since(began), nil
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"compare","version":"1"}}}` + "\n"

// untilInitialize starts an MCP server and returns how long it took until it answered initialize.
func untilInitialize(cmd *exec.Cmd) (took time.Duration, err error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	_, err = io.WriteString(in, initialize)
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
		took = time.Since(began)
	}
	return took, errors.Join(err, in.Close(), cmd.Wait())
}
