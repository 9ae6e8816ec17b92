// Allocrunner is a scheduler's client in the small: it runs jobs from a file in real
// containers, with runc and busybox, and has this library attach them.
//
//	apt-get install runc busybox-static nftables
//	go run ./examples/allocrunner
//
// shows, as root, what such a client has to live through: it starts jobs, is killed
// while a plugin hangs, starts again and adopts what runs, sees its firewall flushed,
// and loses a plugin for good. All of it happens in namespaces and directories that
// vanish with it; only the containers' cgroups, below one named embedcni-allocrunner-…,
// are the machine's, and are removed. Only if this program itself ends by kill -9 do they
// stay, with the containers in them. The client alone is
//
//	allocrunner client -jobs FILE -dir DIR -cgroup NAME
//
// FILE is like jobs.json, on the networks in networks/, of which "tenants" needs a plugin.
// It reads the file again at SIGHUP, and stops everything at SIGTERM. The files client.go
// and alloc.go use the library; story_linux.go is the show.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/embedcni/cni/internal/sandbox"
)

func main() {
	err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "allocrunner:", err)
		os.Exit(1)
	}
}

func run() error {
	if isPlugin() {
		return tenant(os.Stdin, os.Stdout)
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("containers need Linux, this is %s: run it in a Linux virtual machine", runtime.GOOS)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "client" {
		return runClient(ctx, os.Args[2:])
	}
	verbose := flag.Bool("v", false, "show the library's log")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: there is only client", flag.Arg(0))
	}
	if os.Geteuid() != 0 {
		return errors.New("run it as root, because the containers need cgroups")
	}
	inside, code, err := sandbox.Reexec()
	if err != nil {
		return err
	}
	if !inside {
		os.Exit(code)
	}
	return errors.Join(story(ctx, os.Stdout, *verbose), ctx.Err())
}

// runClient is the client alone, in the caller's namespaces.
func runClient(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("client", flag.ExitOnError)
	jobs := flags.String("jobs", "", "the `FILE` of jobs")
	dir := flags.String("dir", "/run/allocrunner", "the `DIR` of records, containers and plugins")
	cgroup := flags.String("cgroup", "embedcni-allocrunner", "the `NAME` of the cgroup of all containers")
	verbose := flags.Bool("v", false, "log what the library does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var logger *slog.Logger
	if *verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	c, err := newClient(*dir, *jobs, *cgroup, os.Stdout, logger)
	if err != nil {
		return err
	}
	if err := c.runc.install(); err != nil {
		return err
	}
	return errors.Join(c.run(ctx, reload), removeCgroups(*cgroup))
}
