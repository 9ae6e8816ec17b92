//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: network namespaces need Linux: run it in a Linux virtual machine")
	os.Exit(1)
}
