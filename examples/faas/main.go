// Faas is a function provider in the small: it runs functions as real containerd tasks,
// gives each an address, and routes HTTP requests to them. It deploys a function, scales
// it from 1 to 10 replicas and to 0, has one die without notice, and shows that nothing
// is left.
//
//	apt-get install containerd runc busybox-static nftables
//	go -C examples/faas run .
//
// It needs root. It starts a containerd of its own, in mount, network and process
// namespaces of its own, which end with it. Outside it makes one cgroup, embedcni-faas,
// and removes it.
//
// provider.go is what a provider does with containerd and with the library; the other
// files prepare for it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

// run returns the exit code.
func run() int {
	// Ctrl-C ends all waits. Everything is undone as after an error.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := start(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faas:", err)
		return 1
	}
	return code
}
