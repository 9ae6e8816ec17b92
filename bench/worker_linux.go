package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// workerVariable makes the program a worker. Its value is the spec.
const workerVariable = "EMBEDCNI_BENCH_WORKER"

// order is one task for a worker.
type order struct {
	Verb    string // ADD, CHECK or DEL
	First   int    // the containers First to First+Count-1
	Count   int
	AtOnce  int
	Network int // or eachItsOwn
}

// eachItsOwn selects a network by the container's number, so that networks fill
// up one after the other.
const eachItsOwn = -1

// reply is the outcome of an order.
type reply struct {
	Err    string `json:",omitempty"`
	Wall   int64  `json:",omitempty"` // microseconds from the begin of the first to the end of the last
	Allocs uint64 `json:",omitempty"` // total
	CPU    int64  `json:",omitempty"` // microseconds of the worker and its programs, without work that the kernel defers
	Faults int64  `json:",omitempty"` // page faults of the programs that it started
	Memory int64  `json:",omitempty"` // the worker's resident memory at the end, in bytes
}

// worker is one contender on its own host: the network namespace that the
// process was started in. It reads orders on stdin and writes replies to
// stdout.
type worker struct {
	spec  spec
	host  *host
	paths []string // paths of the namespaces it has made
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
	defer func() {
		for _, path := range w.paths {
			err = errors.Join(err, netns.Remove(path))
		}
	}()
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
	w.host, err = newHost(w.spec)
	return err
}

func (w *worker) do(ctx context.Context, o order) (reply, error) {
	containers := w.containers(o)
	if o.Verb == verbADD {
		if err := w.create(containers); err != nil {
			return reply{}, err
		}
	}
	return measure(containers, o.AtOnce, func(c container) error { return w.host.do(ctx, o.Verb, c) })
}

// passing is the number of the first container that goes again. Their ports are used
// again after as many of them as are ever attached at once; those of containers that
// stay follow.
const (
	passing    = 20_000
	crowd      = 64
	firstPort  = 5000
	firstStays = firstPort + crowd*206
)

func (w *worker) containers(o order) []container {
	all := make([]container, o.Count)
	for i := range all {
		n := o.First + i
		id := fmt.Sprintf("bench-%05d", n)
		c := container{N: n, Network: o.Network, ID: id, Path: filepath.Join(w.spec.RunDir, "netns", id)}
		ports, first := w.spec.StayPorts, firstStays+n*w.spec.StayPorts
		if n >= passing {
			ports, first = w.spec.Ports, firstPort+n%crowd*w.spec.Ports
		}
		for p := range ports {
			c.Ports = append(c.Ports, uint16(first+p))
		}
		if o.Network == eachItsOwn {
			c.Network = network(n)
		}
		all[i] = c
	}
	return all
}

// create makes the containers' namespaces. Each container gets a new one, as
// real containers do. They stay until the end, because the kernel would
// otherwise clean up during measurements.
func (w *worker) create(all []container) error {
	for _, c := range all {
		ns, err := netns.Create(c.Path)
		if err != nil {
			return err
		}
		w.paths = append(w.paths, c.Path)
		if err := ns.Close(); err != nil {
			return err
		}
	}
	return nil
}
