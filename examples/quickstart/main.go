// Quickstart attaches two containers to two networks, proves that traffic
// flows, detaches them, and shows that nothing is left over:
//
//	go run ./examples/quickstart
//
// It needs nothing but Linux: the plugins are built in. With -plugins it runs
// executables instead. It works as root and as any other user. All of it
// happens in namespaces that vanish with it, so the machine is never changed.
// Run it in the root of a checkout, or name a directory of networks with -config.
//
// A container is a network namespace here. It needs no process: CNI only knows
// the namespace. The file traffic.go has the servers and their clients.
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
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/sandbox"
)

// options are the program's flags.
type options struct {
	config, plugins string
	verbose         bool
}

func main() {
	var o options
	flag.BoolVar(&o.verbose, "v", false, "log each plugin's call")
	flag.StringVar(&o.config, "config", "examples/quickstart/networks", "attach to the networks in `DIR`")
	flag.StringVar(&o.plugins, "plugins", "", "run the executables in `DIR` (default: the built-in plugins, in process)")
	flag.Parse()
	// A runtime has the machine's namespaces. This program makes its own, and
	// runs again in them.
	inside, code, err := sandbox.Reexec()
	if inside && err == nil {
		// Ctrl-C ends all waits. Everything is undone as after an error.
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = errors.Join(story(ctx, os.Stdout, o), ctx.Err())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		code = 1
	}
	os.Exit(code)
}

// story is a container runtime's use of this library, from beginning to end.
func story(ctx context.Context, out io.Writer, o options) (err error) {
	rt, err := newRuntime(o)
	if err != nil {
		return err
	}
	before, err := audit(ctx)
	if err != nil {
		return err
	}
	// Leftovers matter most if the context is over.
	detached := context.WithoutCancel(ctx)
	defer func() {
		err = errors.Join(err, detach(detached, out, rt, "web", "client"), wantNothingLeft(detached, out, before))
	}()

	web, err := attach(ctx, out, rt, "web", cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: hostPort, ContainerPort: port, Protocol: "tcp"},
	}))
	if err != nil {
		return err
	}
	client, err := attach(ctx, out, rt, "client")
	if err != nil {
		return err
	}
	printAddresses(out, "web", web)
	printAddresses(out, "client", client)
	return proveTraffic(ctx, out, web, client)
}

// newRuntime returns a Runtime with the loopback network and all networks of
// the directory. Their interfaces are lo, eth0, eth1, …
func newRuntime(o options) (*cni.Runtime, error) {
	opts := []cni.Opt{cni.WithPluginConfDir(o.config)}
	if o.plugins != "" {
		opts = append(opts, cni.WithPluginDir([]string{o.plugins}))
	} else {
		opts = append(opts, cni.WithBuiltinPlugins())
	}
	if o.verbose {
		opts = append(opts, cni.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))))
	}
	rt, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	if err := rt.Load(cni.WithLoNetwork, cni.WithAllConf); err != nil {
		return nil, fmt.Errorf("networks of %s: %w", o.config, err)
	}
	// A runtime on a real host continues with the valid networks. Here somebody
	// tries out a configuration and wants to see mistakes.
	for _, file := range rt.GetConfig().Skipped {
		return nil, fmt.Errorf("%s: %s: correct it, or move it out of the directory", file.Path, file.Reason)
	}
	return rt, nil
}

// attach attaches a container to all networks, in a namespace that the library
// makes.
func attach(ctx context.Context, out io.Writer, rt *cni.Runtime, id string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	begin := time.Now()
	result, err := rt.Setup(ctx, id, "", append(opts, cni.WithNewNetNS())...)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	fmt.Fprintf(out, "attached %s to %d networks in %s\n", id, len(result.Networks), milliseconds(begin))
	return result, nil
}

// detach detaches the containers, with their namespaces. Remove may be called
// for a container that was never set up.
func detach(ctx context.Context, out io.Writer, rt *cni.Runtime, ids ...string) error {
	var errs []error
	for _, id := range ids {
		begin := time.Now()
		if err := rt.Remove(ctx, id, ""); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", id, err))
		} else {
			fmt.Fprintf(out, "detached %s in %s\n", id, milliseconds(begin))
		}
	}
	return errors.Join(errs...)
}

// printAddresses prints a row for each address of the container.
func printAddresses(out io.Writer, id string, result *cni.Result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%s\tINTERFACE\tMAC\tADDRESS\tGATEWAY\n", id)
	for _, n := range result.Networks {
		for _, i := range n.Interfaces {
			if i.Sandbox == "" { // on the host, such as the bridge
				continue
			}
			for _, a := range i.Addresses {
				gateway := "none"
				if a.Gateway.IsValid() {
					gateway = a.Gateway.String()
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name, i.Name, i.Mac, a.Prefix, gateway)
			}
		}
	}
	w.Flush()
}

// audit lists the state of the host: links, routes, packet filters, files. Objects that
// stay for the next container, such as the bridge, are left out.
func audit(ctx context.Context) ([]string, error) {
	return cnitest.Audit(ctx, cnitest.Options{StateDirs: []string{"/run", "/var/lib/cni"}})
}

// wantNothingLeft compares with an earlier audit.
func wantNothingLeft(ctx context.Context, out io.Writer, before []string) error {
	after, err := audit(ctx)
	if err != nil {
		return err
	}
	if left := cnitest.Diff(before, after); left != "" {
		return fmt.Errorf("the containers did not leave the host as it was:\n%s", left)
	}
	fmt.Fprintln(out, "left of the containers: nothing")
	return nil
}

func milliseconds(since time.Time) string {
	return fmt.Sprintf("%.1f ms", time.Since(since).Seconds()*1000)
}
