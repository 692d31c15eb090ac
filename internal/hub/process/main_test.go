//go:build unix

package process_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhub/parley/internal/hub/process"
)

// helperEnv names the helper program that the test binary runs as.
const helperEnv = "PROCESS_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		helper(name, os.Args[1:])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func helper(name string, args []string) {
	switch name {
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "args":
		fmt.Printf("%q\n", args)
	case "exit":
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	case "stderr":
		fmt.Fprintln(os.Stderr, strings.Join(args, " "))
	case "flood": // writes to both streams, of which only one is read
		line := strings.Repeat("x", 1023) + "\n"
		n, _ := strconv.Atoi(args[0])
		for range n {
			_, _ = os.Stderr.WriteString(line)
			_, _ = os.Stdout.WriteString(line)
		}
		fmt.Println("end")
	case "bigline":
		n, _ := strconv.Atoi(args[0])
		chunk := strings.Repeat("y", 1<<20)
		for range n {
			_, _ = os.Stdout.WriteString(chunk)
		}
		fmt.Println()
		fmt.Print("half a line")
	case "hang":
		hang()
	case "stubborn": // ignores signals other than SIGKILL, and prints them
		ch := make(chan os.Signal, 8)
		signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
		fmt.Println("ready")
		for s := range ch {
			fmt.Println(s)
		}
	case "polite":
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, syscall.SIGINT)
		fmt.Println("ready")
		<-ch
		fmt.Println("last words")
	case "killself":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "tree": // starts grandchildren of every kind, then acts as args say
		tree(args)
	}
}

func hang() {
	fmt.Println("ready")
	for {
		time.Sleep(time.Hour)
	}
}

// tree starts, in this order, a plain child, one in a session of its own, and
// one whose parent has ended and that has a session of its own; it prints their
// ids and then ends or hangs.
func tree(args []string) {
	switch args[0] {
	case "leaf":
		fmt.Println(os.Getpid())
		_ = os.Stdout.Sync() // fails for a pipe, which needs no sync
		for {
			time.Sleep(time.Hour)
		}
	case "fork": // starts a leaf and ends
		spawn("leaf", true)
		return
	}
	spawn("leaf", false)
	spawn("leaf", true)
	spawn("fork", true)
	fmt.Println("ready")
	if args[0] == "hang" {
		for {
			time.Sleep(time.Hour)
		}
	}
}

// spawn runs this binary again, waits until a leaf has printed its process id and prints
// it. The child keeps the pipes of this process open.
func spawn(mode string, setsid bool) {
	cmd := exec.Command(os.Args[0], mode)
	cmd.Stderr = os.Stderr
	cmd.Stdin = os.Stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		panic(err)
	}
	fmt.Print(line)
	if mode == "fork" {
		_ = cmd.Wait()
	}
}

// helperCommand returns a command that runs a helper with a base environment.
func helperCommand(name string, args ...string) process.Command {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return process.Command{
		Path: self,
		Args: args,
		Env:  process.Environ(os.Environ(), []string{"GOCOVERDIR"}, map[string]string{helperEnv: name, "GORACE": "atexit_sleep_ms=0"}),
	}
}
