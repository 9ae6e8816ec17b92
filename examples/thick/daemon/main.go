// Daemon is the thick example's daemon: it attaches containers for the shim that a runtime
// executes. Each container gets the first network of a directory, and those that the runtime
// names in CNI_ARGS, in the syntax of a pod's annotation (see package multinet):
//
//	NETWORKS=storage@net7,backup
//
// It needs root. With -builtin, no plugin needs to be installed for the types that are built
// into it; the others are executables:
//
//	daemon -networks /etc/thick -plugins /opt/cni/bin -builtin bridge,host-local,portmap
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// options are those of the command line.
type options struct{ networks, plugins, builtin, state, socket, queue, ready string }

func main() {
	var o options
	flag.StringVar(&o.networks, "networks", "", "the `directory` of the networks' conflists; it must be given")
	flag.StringVar(&o.plugins, "plugins", "/opt/cni/bin", "the `directories` of the plugins, separated by colons")
	flag.StringVar(&o.builtin, "builtin", "", "the plugin `types` that run in process although they are installed, separated by commas")
	flag.StringVar(&o.state, "state", "/var/lib/thick", "the `directory` of the records; it must survive a reboot")
	flag.StringVar(&o.socket, "socket", "/run/thick/multus.sock", "the `path` of the socket")
	flag.StringVar(&o.queue, "queue", "/var/lib/thick/dels", "the `directory` of DELs that came while no daemon ran")
	flag.StringVar(&o.ready, "ready", "", "hold ADDs back until this `file` exists")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: daemon -networks DIR [flags]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.networks == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, o); err != nil {
		slog.Error("daemon", "error", err)
		os.Exit(1)
	}
}

// grace is how long a shutdown lets calls go on.
const grace = 20 * time.Second

func serve(ctx context.Context, o options) error {
	opts := []cni.Opt{
		cni.WithOwner("thick"), cni.WithStateDir(o.state), cni.WithPluginDir(filepath.SplitList(o.plugins)), cni.WithPluginConfDir(o.networks),
		cni.WithDefaultConf, cni.WithObserver(logPlugin),
	}
	if o.builtin != "" {
		opts = append(opts, cni.WithBuiltinPlugins(strings.Split(o.builtin, ",")...))
	}
	rt, err := cni.New(opts...)
	if err != nil {
		return err
	}
	b := backend.New(rt, backend.Options{Networks: requested, Lookup: inDirectory(o.networks)})
	s, err := server.New(b, server.Options{ReadinessFile: o.ready})
	if err != nil {
		return err
	}
	l, err := s.Listen(o.socket)
	if err != nil {
		return err
	}
	drained, err := s.Drain(context.Background(), o.queue) // beside serving; a Shutdown ends it
	if err == nil {
		err = recoverDead(ctx, rt)
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	go func() { logDrained(<-drained) }()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	slog.Info("serving", "socket", o.socket)
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err = s.Shutdown(late)
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// recoverDead removes the containers that died while no daemon ran.
func recoverDead(ctx context.Context, rt *cni.Runtime) error {
	recovered, err := rt.Recover(ctx)
	if err != nil {
		return err
	}
	slog.Info("recovered", "adopted", len(recovered.Adopted), "removed", len(recovered.Removed), "error", recovered.Err())
	return nil
}

// logDrained logs the outcome of each DEL that a shim queued while no daemon ran.
func logDrained(r *server.DrainReport) {
	for outcome, dels := range map[string][]server.QueuedDel{"ended": r.Ended, "dropped": r.Dropped, "failed": r.Failed} {
		for _, d := range dels {
			slog.Info("queued DEL", "outcome", outcome, "container", d.ContainerID, "interface", d.IfName, "network", d.Network, "error", d.Err)
		}
	}
	if r.Unreadable != nil {
		slog.Error("queued DELs", "error", r.Unreadable)
	}
}

// requested returns the networks that a container gets beside the first. A daemon for
// Kubernetes would read the annotation of the pod r.Pod.
func requested(_ context.Context, r *server.Request) (string, error) { return r.Args["NETWORKS"], nil }

// inDirectory returns a function that finds a network by its name.
func inDirectory(dir string) func(context.Context, *server.Request, multinet.Selection) (multinet.Definition, error) {
	return func(_ context.Context, r *server.Request, s multinet.Selection) (found multinet.Definition, err error) {
		if s.Namespace != r.Pod.Namespace {
			return found, errors.New("it is in another namespace than the pod")
		}
		list, err := libcni.LoadNetworkConf(dir, s.Name)
		if err != nil {
			return found, err
		}
		found.Config = list.Bytes
		return found, nil
	}
}

func logPlugin(_ context.Context, e cni.Event) {
	slog.Info("plugin", "operation", e.Operation, "type", e.Plugin, "kind", e.PluginKind, "network", e.Network,
		"container", e.ContainerID, "interface", e.IfName, "took", e.Duration, "error", e.Err)
}
