// Package daemon joins the packages of a thick plugin to the daemon of a node: the server at
// the socket, a Runtime behind it, on Kubernetes the API server, and around them probes,
// metrics, a configuration that is read again, and the notifications of systemd.
package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
	"github.com/embedcni/cni/thick/kube/kubelet"
	"github.com/embedcni/cni/thick/metrics"
	"github.com/embedcni/cni/thick/server"
)

// Options are what a daemon gets from its process.
type Options struct {
	Version string // of the program, for the log
	// Path is the file of the configuration, which is watched. Empty: there is none.
	Path string
	// Load returns the configuration, at the start and after each change.
	Load func() (config.Config, error)
	// Log is where the log is written.
	Log io.Writer
	// Hangup has a signal when the configuration is to be read again.
	Hangup <-chan os.Signal
}

// Run serves until ctx ends, and then shuts down: calls under way may go on for the time in
// the configuration. It returns nil after a shutdown in which no call had to be cancelled.
func Run(ctx context.Context, o Options) error {
	d, err := assemble(o)
	if err != nil {
		return err
	}
	end, err := trace(os.Getenv, o.Version, d.log)
	if err != nil {
		return err
	}
	defer end()
	return d.run(ctx)
}

// daemon is a daemon that runs.
type daemon struct {
	Options
	config  atomic.Pointer[config.Config] // the one in force
	refused string                        // the last reason for which one was refused
	level   slog.LevelVar
	log     *slog.Logger

	runtime    *cni.Runtime
	backend    *backend.Backend
	server     *server.Server
	cluster    *cluster // nil without Kubernetes
	metrics    *metrics.Metrics
	own        own
	probes     probes
	conditions conditions
	guarding   guarding
	systemd    systemd
	changed    chan struct{} // has an element after a change of the file
	recovered  chan struct{} // closed when the dead are removed
	retried    chan struct{} // closed when no removal goes on or begins any more
}

// assemble makes all parts. None of them runs yet.
func assemble(o Options) (*daemon, error) {
	c, err := o.Load()
	if err != nil {
		return nil, err
	}
	d := &daemon{Options: o, changed: make(chan struct{}, 1), recovered: make(chan struct{}), retried: make(chan struct{})}
	d.config.Store(&c)
	d.level.Set(c.Log.SlogLevel())
	d.log = slog.New(handler(c.Log, o.Log, &d.level))
	d.systemd.log = d.log
	registry := prometheus.NewRegistry()
	if d.own, err = newOwn(registry, o.Version, &d.conditions); err != nil {
		return nil, err
	}
	if d.metrics, err = metrics.New(registry); err != nil {
		return nil, err
	}
	d.guarding = guarding{log: d.log, conditions: &d.conditions, report: d.metrics.Guard}
	d.probes = newProbes(d.log, &d.conditions, registry)
	d.runtime, err = cni.New(append(settings(&c), cni.WithLogger(d.log), cni.WithObserver(d.metrics.Plugin))...)
	if err != nil {
		return nil, err
	}
	if err := d.metrics.Attachments(d.runtime.Attachments); err != nil {
		return nil, err
	}
	if err := d.assembleServer(&c); err != nil {
		return nil, err
	}
	return d, d.metrics.Server(d.server.Stats)
}

// assembleServer makes the server, over a Backend that answers for one of the two lives.
func (d *daemon) assembleServer(c *config.Config) (err error) {
	o := backend.Options{Networks: inArguments, Lookup: d.lookup, Logger: d.log}
	so := server.Options{UID: c.UID, ReadinessFile: c.ReadinessFile, Observe: d.observe, Logger: d.log, Limits: c.Limits}
	if c.Kubernetes.Enabled {
		if d.cluster, err = connect(c.Kubernetes, d.networkInFile, d.log); err != nil {
			return err
		}
		pods := d.cluster.pods
		o.Networks, o.DefaultNetwork, o.Lookup, o.OnStatus = pods.Networks, pods.DefaultNetwork, pods.Configuration, pods.SetStatus
		o.Devices = kubelet.Devices{}
		so.Kubernetes, so.PodUID = true, pods.UID
		d.conditions.ask("kubernetes", d.cluster.condition)
	}
	d.backend = backend.New(d.runtime, o)
	d.server, err = server.New(&calls{d.backend, d}, so)
	return err
}

// handler returns the handler of a log.
func handler(c config.Log, to io.Writer, level slog.Leveler) slog.Handler {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // in JSON it would be nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	if c.Format == config.JSON {
		return slog.NewJSONHandler(to, o)
	}
	return slog.NewTextHandler(to, o)
}

// run does the work of a daemon in its order. From the moment that it listens on, a shim asks
// and queues no DEL. ADDs of the containers in the queue wait until their DELs have ended.
func (d *daemon) run(ctx context.Context) error {
	c := d.config.Load()
	d.conditions.set("listening", unmet, "not yet")
	d.conditions.set("drained", doubtful, "queued DELs are being carried out")
	d.conditions.set("recovered", doubtful, "dead containers are being removed")
	d.conditions.set("configuration", met, "")
	if err := d.probes.listen(c.HTTP.Address); err != nil {
		return err
	}
	defer d.probes.close()
	l, err := d.server.Listen(c.Socket)
	if err != nil {
		return err
	}
	d.loadNetworks(c)
	drained, err := d.drain(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	start, end := d.begin(ctx)
	defer end()
	start(func(beside context.Context) { d.awaitDrained(beside, drained) })
	go func() {
		defer close(d.retried)
		d.retryRemovals(ctx, d.removeDead(ctx))
	}()
	first, cancel := context.WithTimeout(ctx, recoverFirst)
	defer cancel()
	d.await(first, d.recovered)
	return d.serve(ctx, l)
}

// begin starts what goes on beside the calls, and so does start. The function end ends it: after
// the calls, which may need it.
func (d *daemon) begin(ctx context.Context) (start func(func(context.Context)), end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	start = func(f func(context.Context)) { all.Go(func() { f(ctx) }) }
	start(d.watchNetworks)
	if d.Path != "" {
		start(d.watchFile)
	}
	if d.cluster != nil {
		start(d.cluster.run)
	}
	if d.config.Load().HealthInterval > 0 {
		start(d.measureHealth)
	}
	return start, func() {
		d.guarding.end()
		cancel()
		all.Wait()
	}
}

// serve answers calls until ctx ends.
func (d *daemon) serve(ctx context.Context, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- d.server.Serve(l) }()
	c := d.config.Load()
	d.guarding.guard(d.runtime, c.Guard)
	d.conditions.ask("listening", isAt(c.Socket))
	d.log.Info("serving", "version", d.Version, "socket", c.Socket, "http", c.HTTP.Address, "kubernetes", c.Kubernetes.Enabled)
	d.systemd.ready()
	alive, stop := d.systemd.watchdog()
	defer stop()
	for {
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
			return d.shutdown(served)
		case <-d.Hangup:
			d.reload(true)
		case <-d.changed:
			d.reload(false)
		case <-alive:
			d.systemd.alive()
		}
	}
}

// isAt returns a condition: the socket that is at a path now stays there. Somebody may remove it,
// or its directory; then no client finds the daemon.
func isAt(path string) func() (state, string) {
	own, _ := os.Lstat(path) // nil is no file
	return func() (state, string) {
		if now, err := os.Lstat(path); err != nil {
			return unmet, err.Error() + ": somebody has removed the socket; restart"
		} else if !os.SameFile(own, now) {
			return unmet, path + " is another program's by now; restart"
		}
		return met, ""
	}
}

// shutdown lets calls under way end, and removals.
func (d *daemon) shutdown(served <-chan error) error {
	grace := d.config.Load().ShutdownGrace
	d.log.Info("shutting down", "grace", grace)
	d.conditions.set("listening", unmet, "shutting down")
	d.systemd.stopping()
	late, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := d.server.Shutdown(late)
	d.await(late, d.retried)
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
