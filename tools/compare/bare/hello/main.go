// Hello prints a line: the least that a program costs.
package main

import "os"

func main() { os.Stdout.WriteString("hello\n") }
