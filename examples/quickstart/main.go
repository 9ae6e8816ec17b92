// Quickstart attaches two containers to two networks, proves that traffic
// flows, detaches them, and shows that nothing is left over:
//
//	go run ./examples/quickstart
//
// It needs nothing but Linux: the plugins are built in. With -plugins it runs
// executables instead. It works as root and as any other user. All of it
// happens in namespaces that vanish with it, so the machine is never changed.
// Run it in a checkout of the module.
//
// This file tells the story. The file prepare.go makes the preparations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/sandbox"
)

func main() {
	verbose := flag.Bool("v", false, "log each plugin's call, and list all that is kept for the next container")
	configDir := flag.String("config", "", "attach to the networks in `DIR` (default: testdata/quickstart of the checkout)")
	pluginDir := flag.String("plugins", "", "run the executables in `DIR` (default: the built-in plugins, in process)")
	first := flag.Int("first", -1, "measure the first packets of `N` new containers each (default: 50; with -plugins 0, as that takes minutes)")
	flag.Parse()
	if *first < 0 {
		*first = 50
		if *pluginDir != "" {
			*first = 0
		}
	}
	os.Exit(run(options{configDir: *configDir, pluginDir: *pluginDir, verbose: *verbose, first: *first}))
}

// options are the program's flags.
type options struct {
	configDir, pluginDir string
	verbose              bool
	first                int // number of containers for first packets
}

// run returns the exit code.
func run(o options) int {
	// Ctrl-C ends all waits. Everything is undone as after an error.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	code, err := start(ctx, o)
	switch {
	case err == nil:
		return code
	case ctx.Err() != nil:
		// An interruption causes many errors, and none of them is news.
		fmt.Fprintln(os.Stderr, "quickstart: interrupted")
	default:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
	}
	return 1
}

// start runs the program again in a sandbox, which runs the story.
func start(ctx context.Context, o options) (code int, err error) {
	if runtime.GOOS != "linux" {
		return 1, fmt.Errorf("network namespaces need Linux, this is %s: run it in a Linux virtual machine", runtime.GOOS)
	}
	inside, code, err := sandbox.Reexec(sandbox.Before(func() ([]string, error) { return prepare(o.pluginDir) }))
	if err != nil || !inside {
		return code, err
	}
	if o.configDir, err = findConfig(o.configDir); err != nil {
		return 1, err
	}
	// An interrupted run is not a success, even if the last plugin had
	// finished.
	return 0, errors.Join(story(ctx, os.Stdout, o), ctx.Err())
}

// story is a container runtime's use of this library, from beginning to end.
func story(ctx context.Context, out io.Writer, o options) error {
	calls := &callTimes{}
	rt, err := newRuntime(o, calls)
	if err != nil {
		return err
	}
	before, err := snapshot(ctx)
	if err != nil {
		return err
	}

	web := &container{name: "web", ports: []cni.PortMapping{
		{HostPort: 8080, ContainerPort: echoPort, Protocol: "tcp"},
		{HostPort: 8080, ContainerPort: echoPort, Protocol: "udp"},
	}}
	client := &container{name: "client"}

	err = attachAll(ctx, out, rt, web, client)
	if err == nil {
		printTable(out, calls, web, client)
		err = proveTraffic(ctx, out, rt, web, client)
	}
	if err == nil && o.first > 0 {
		err = measureFirstPackets(ctx, out, rt, o.first)
	}
	// Always: Remove may be called for a container that was never set up.
	err = errors.Join(err, removeAll(ctx, out, rt, web, client))

	// Leftovers matter most if the context is over.
	return errors.Join(err, printLeftovers(context.WithoutCancel(ctx), out, before, o.verbose))
}

// newRuntime returns a Runtime with the loopback network and all networks of
// the directory. Their interfaces are lo, eth0, eth1, …
func newRuntime(o options, calls *callTimes) (*cni.Runtime, error) {
	var logger *slog.Logger // none: nothing is logged
	if o.verbose {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	dirs, which := cni.WithPluginDir(nil), cni.WithBuiltinPlugins()
	if o.pluginDir != "" {
		dirs, which = cni.WithPluginDir([]string{o.pluginDir}), cni.WithoutBuiltinPlugins()
	}
	rt, err := cni.New(
		dirs, which,
		cni.WithPluginConfDir(o.configDir),
		cni.WithStateDir(stateDir),
		cni.WithLogger(logger),
		cni.WithObserver(calls.observe),
	)
	if err != nil {
		return nil, err
	}
	if err := rt.Load(cni.WithLoNetwork, cni.WithAllConf); err != nil {
		return nil, err
	}
	// A runtime on a real host continues with the valid networks. Here somebody
	// tries out a configuration and wants to see mistakes.
	for _, file := range rt.GetConfig().Skipped {
		return nil, fmt.Errorf("%s: %s: correct it, or move it out of the directory", file.Path, file.Reason)
	}
	return rt, checkPlugins(rt.GetConfig())
}
