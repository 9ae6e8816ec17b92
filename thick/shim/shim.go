// Package shim is a CNI plugin that does nothing itself: a daemon does, over a unix
// socket. The program around it needs one line:
//
//	func main() { shim.Main(shim.Options{Socket: "/run/example/multus.sock"}) }
//
// Built without the C library (CGO_ENABLED=0), it starts as fast as a reference plugin.
//
// The daemon is one of package server, or Multus' thick plugin: the form on the socket is
// Multus'. To the runtime that executes the shim it is like any other plugin: it checks the
// CNI_* variables and the version, returns the result in the version of the configuration,
// and a daemon's error object with its code and details. A trace in its environment (TRACEPARENT)
// is passed on to the daemon.
//
// ADD, CHECK and GC wait for a daemon that is about to start, for a limited time. DEL does
// not wait: if no daemon is there, it is queued on the disk, and the next daemon carries it
// out. See Options.
package shim

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/thick/internal/wire"
)

// Default times of Options.
const (
	DefaultReadyWithin  = time.Minute     // as Multus' shim waits
	DefaultAnswerWithin = 5 * time.Minute // more than the deadline of package server
)

// Options configures a shim.
type Options struct {
	// Socket is the path of the daemon's socket. A configuration with the field
	// daemonSocketDir, as Multus' have it, names another directory for this call, in
	// which the socket has the same file name, or multus.sock if Socket is empty.
	Socket string

	// QueueDir is the directory in which a DEL is kept if there is no daemon. It must be
	// on a file system that survives a reboot, and be drained by the daemon: see package
	// server. The shim makes it with the mode 0700, and refuses one to which others can
	// write. If it is empty, or the DEL cannot be queued, the DEL fails, with a code that
	// makes runtimes repeat it.
	//
	// A DEL is queued only if no process listens at the socket, or if the daemon's
	// process ends before it answers. A daemon that is alive and does not answer in
	// time, or closes the connection, makes the DEL fail.
	QueueDir string

	// ReadyWithin limits how long ADD, CHECK and GC wait for a daemon that is not there
	// or not ready. Zero is [DefaultReadyWithin], and a negative time does not wait.
	ReadyWithin time.Duration
	// AnswerWithin limits how long a request waits for its answer. Zero is
	// [DefaultAnswerWithin].
	AnswerWithin time.Duration
}

// Process is the environment of an execution of the shim.
type Process struct {
	Env    []string // "key=value", as os.Environ returns them
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer // notes for people: a queued DEL
}

// Main runs the shim as this process, and ends it.
func Main(o Options) {
	os.Exit(Run(context.Background(), o, Process{os.Environ(), os.Stdin, os.Stdout, os.Stderr}))
}

// Run runs the shim for one CNI call, and returns its exit code: 0, or 1 with an error
// object on standard output (CNI specification 1.1.0, section 5). Nothing else is written
// there than the result of ADD and the answer to VERSION. If the context ends, the call
// fails; a daemon stops working on it when its connection is closed.
func Run(ctx context.Context, o Options, p Process) int {
	c := &call{Options: o, Process: p}
	out, err := c.run(ctx)
	if err != nil {
		out = c.errorObject(err)
	}
	if _, werr := p.Stdout.Write(out); werr != nil {
		c.note("write standard output: %v", werr)
		return 1
	}
	if err != nil {
		return 1
	}
	return 0
}

// call is one execution.
type call struct {
	Options
	Process
	args    *wire.Args
	config  []byte
	network string
	version string // of the configuration
	body    []byte // of the request
}

// notAvailable is the code of STATUS if ADD cannot be served (CNI specification 1.1.0,
// section 2).
const notAvailable = 50

func (c *call) run(ctx context.Context) ([]byte, error) {
	env := wire.Environ(c.Env)
	args, err := wire.Rules{}.Parse(env)
	if err != nil {
		return nil, err
	}
	c.args = args
	if args.Command == wire.Version {
		return c.versions()
	}
	if args.Command == wire.GC && len(args.Path) == 0 {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "required env variables [CNI_PATH] missing", "")
	}
	if err := c.readConfig(); err != nil {
		return nil, err
	}
	if c.body, err = c.request(env); err != nil {
		return nil, err
	}
	d := &daemon{socket: c.Socket, within: c.AnswerWithin, trace: traceFields(c.Env)}
	switch args.Command {
	case wire.Del:
		return nil, c.del(ctx, d)
	case wire.Status:
		err := d.ready(ctx)
		if err == nil {
			_, err = d.call(ctx, c.body)
		}
		return nil, unavailable(err)
	}
	if err := d.waitReady(ctx, c.ReadyWithin); err != nil {
		return nil, err
	}
	result, cerr := d.call(ctx, c.body)
	if cerr != nil || args.Command != wire.Add {
		return nil, cerr
	}
	return c.print(result)
}
