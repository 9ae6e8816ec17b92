package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/netns"
)

// workerVariable makes the program a worker. Its value is the spec.
const workerVariable = "EMBEDCNI_BENCH_WORKER"

// worker is one contender on its own host: the network namespace that the
// process was started in. It reads orders on stdin and writes replies to
// stdout.
type worker struct {
	spec     spec
	attacher attacher
	paths    []string // paths of the namespaces it has made
}

func runWorker(text string, in io.Reader, out io.Writer) (err error) {
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.spec); err != nil {
		return err
	}
	replies := json.NewEncoder(out)
	if err := w.begin(); err != nil {
		return replies.Encode(reply{Err: err.Error()})
	}
	defer func() { err = errors.Join(err, w.end()) }()
	if err := replies.Encode(reply{}); err != nil {
		return err
	}
	for orders := json.NewDecoder(in); ; {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r, err := w.do(context.Background(), o)
		if err != nil {
			r.Err = err.Error()
		}
		if err := replies.Encode(r); err != nil {
			return err
		}
	}
}

// begin sets up the process's namespaces as a host.
func (w *worker) begin() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// The path of go-cni's cache is fixed. The cache belongs on the same file
	// system as every other contender's state.
	varLib := filepath.Join(w.spec.Dir, "var-lib-cni")
	for _, dir := range []string{varLib, "/var/lib/cni", w.spec.dataDir(), w.spec.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(varLib, "/var/lib/cni", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on /var/lib/cni: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	w.attacher, err = newAttacher(w.spec)
	return err
}

func (w *worker) end() error {
	errs := []error{w.attacher.close()}
	for _, path := range w.paths {
		errs = append(errs, netns.Remove(path))
	}
	return errors.Join(errs...)
}

func (w *worker) do(ctx context.Context, o order) (reply, error) {
	switch o.Verb {
	case "add":
		containers, err := w.create(o)
		if err != nil {
			return reply{}, err
		}
		return measure(containers, o.AtOnce, func(c container) error { return w.attacher.add(ctx, c) })
	case "del":
		return measure(w.containers(o), o.AtOnce, func(c container) error { return w.attacher.del(ctx, c) })
	case "check":
		c, ok := w.attacher.(checker)
		if !ok {
			return reply{}, fmt.Errorf("%s has no CHECK", w.spec.Contender)
		}
		return measure(w.containers(o), o.AtOnce, func(one container) error { return c.check(ctx, one) })
	case "pair":
		return w.pair(ctx, o)
	case "snapshot":
		lines, err := audit.Snapshot(ctx, audit.Options{StateDirs: []string{w.spec.Dir}})
		return reply{Lines: lines.Without(w.expected)}, err
	}
	return reply{}, fmt.Errorf("no verb %q", o.Verb)
}

// expected reports whether a line is a permitted change after a DEL: host-local
// keeps the last address, sockets stay open for reuse, and the containers'
// namespaces are the benchmark's own.
func (w *worker) expected(line string) bool {
	return strings.Contains(line, "/last_reserved_ip.") || strings.HasPrefix(line, "fd ") ||
		strings.HasPrefix(line, "mount nsfs "+filepath.Join(w.spec.RunDir, "netns")+"/")
}

func (w *worker) containers(o order) []container {
	all := make([]container, o.Count)
	for i := range all {
		n := o.First + i
		id := fmt.Sprintf("bench-%05d", n)
		all[i] = container{N: n, Network: o.Network, ID: id, Path: filepath.Join(w.spec.RunDir, "netns", id), Port: uint16(10000 + n)}
		if o.Network == eachItsOwn {
			all[i].Network = network(n)
		}
	}
	return all
}

// create makes the containers' namespaces. Each container gets a new one, as
// real containers do. They stay until the end, because the kernel would
// otherwise clean up during measurements.
func (w *worker) create(o order) ([]container, error) {
	all := w.containers(o)
	for _, c := range all {
		ns, err := netns.Create(c.Path)
		if err != nil {
			return nil, err
		}
		w.paths = append(w.paths, c.Path)
		if err := ns.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}
