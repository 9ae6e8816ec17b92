// Overlay is what a cluster's hosts do with this library and an overlay network that exists:
// real etcd, real flanneld, and three hosts that are namespaces on a wire. It prints who pings
// whom over VXLAN and host-gw, what fails, and how long it takes until traffic is back:
//
//	apt-get install etcd-server iptables nftables gcc libc6-dev
//	go -C examples/overlay run .
//	go -C examples/overlay run . -hosts 10 -containers 1000 -at-once 8
//
// It needs root. Everything runs in mount, network and process namespaces of its own, which end
// with it, so that the machine stays as it is. README.md says what each part shows.
//
// agent_linux.go is what the runtime of a host does with the library; the other files prepare
// for it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// options are the program's flags.
type options struct {
	hosts      int
	containers int // on all hosts together; 0 is the story
	atOnce     int
}

const usage = `Usage: overlay [-hosts N] [-containers N [-at-once N]]

Without -containers it prints the story of hosts that reach each other through flannel, and of
what fails. With -containers it attaches that many, and prints the rate and the loss.

`

// mostContainers is how many addresses flannel's subnet of a host has for them.
const mostContainers = 250

// parse returns the options of the command line.
func parse(args []string) (o options, err error) {
	flags := flag.NewFlagSet("overlay", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	flags.IntVar(&o.hosts, "hosts", 3, "`number` of hosts, from 3 to 100")
	flags.IntVar(&o.containers, "containers", 0, "`number` of containers on all hosts together")
	flags.IntVar(&o.atOnce, "at-once", 8, "`number` of containers that are attached at the same time")
	if err := flags.Parse(args); err != nil {
		return o, err // flags has printed it
	}
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("there is no argument %q", flags.Arg(0))
	case o.hosts < 3 || o.hosts > 100:
		err = fmt.Errorf("-hosts %d: from 3 to 100", o.hosts)
	case o.atOnce < 1:
		err = fmt.Errorf("-at-once %d: at least 1", o.atOnce)
	case o.containers != 0 && (o.containers < o.hosts || o.containers > o.hosts*mostContainers):
		err = fmt.Errorf("-containers %d: from %d to %d on %d hosts", o.containers, o.hosts, o.hosts*mostContainers, o.hosts)
	}
	if err != nil {
		fmt.Fprintln(flags.Output(), "overlay:", err)
		flags.Usage()
	}
	return o, err
}

// missing is an error about what this machine does not have.
type missing struct{ what string }

func (m missing) Error() string { return m.what }

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit code: 2 if the command line is wrong or something is missing.
func run(args []string) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	// Ctrl-C ends all waits. Everything is undone as after an error.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := start(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		code = 1
		if errors.As(err, new(missing)) {
			code = 2
		}
	}
	return code
}
