// Send sends a message to a hub's echo agent over its Unix socket and prints the answer: the least that a client costs.
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
)

const request = `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m-%d","role":"user","parts":[{"kind":"text","text":"hi"}],"metadata":{"targetAgent":"echo"}}}}` + "\n"

func main() {
	if err := send(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func send(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, request, os.Getpid()); err != nil {
		return err
	}
	answer, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.Contains(answer, "completed") {
		return fmt.Errorf("no completed task: %s", answer)
	}
	_, err = os.Stdout.WriteString(answer)
	return err
}
