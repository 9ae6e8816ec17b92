//go:build !linux

package main

import "log"

func main() {
	log.Fatal("bench: network namespaces need Linux: run it in a Linux virtual machine")
}
