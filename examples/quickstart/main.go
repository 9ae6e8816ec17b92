// Quickstart attaches two containers to two networks, proves that traffic
// flows, detaches them, and shows that nothing of them is left:
//
//	go run ./examples/quickstart
//
// It needs Linux and nothing else: the plugins are those built in. With -plugins
// it runs executables instead. It works as root and as any other user. All of it
// happens in namespaces of its own that vanish with it, so the machine is never
// touched. Run it in a checkout of the module.
//
// This file is the story; prepare.go says what must be there beforehand.
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
	pluginDir := flag.String("plugins", "", "run the executables in `DIR` (default: what is built in, in process)")
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
	first                int // how many containers' first packets are measured
}

// run returns the code to exit with.
func run(o options) int {
	// Ctrl-C ends what waits, and everything is undone as after any error.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	code, err := start(ctx, o)
	switch {
	case err == nil:
		return code
	case ctx.Err() != nil:
		// What was cut short is many errors, of which none is news.
		fmt.Fprintln(os.Stderr, "quickstart: interrupted")
	default:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
	}
	return 1
}

// start runs the program a second time, in a sandbox, and there the story.
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
	// Not a success if it was interrupted, even if after the last plugin.
	return 0, errors.Join(story(ctx, os.Stdout, o), ctx.Err())
}

// story is what a container runtime does with this library, from beginning to
// end.
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
	// Whatever happened: Remove may be called for what was never set up.
	err = errors.Join(err, removeAll(ctx, out, rt, web, client))

	// The context may be over, and this is worth knowing all the more then.
	return errors.Join(err, printLeftovers(context.WithoutCancel(ctx), out, before, o.verbose))
}

// newRuntime returns a Runtime with the loopback network and all networks of
// the directory, whose interfaces are lo, eth0, eth1, …
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
	// A runtime on a real host goes on with the networks that are fine. Here
	// somebody is trying out a configuration, and wants to know.
	for _, file := range rt.GetConfig().Skipped {
		return nil, fmt.Errorf("%s: %s: correct it, or move it out of the directory", file.Path, file.Reason)
	}
	return rt, checkPlugins(rt.GetConfig())
}
