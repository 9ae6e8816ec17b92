// Package cli has the commands of embedcni: one file and one constructor for each.
//
// A command reads the global flags from an app, opens a Runtime with app.open, prints with
// app.print, and returns an error; Run makes an exit code of it.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/embedcni/cni"
)

// Streams are what a run of the program has of the outside.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	Now      func() time.Time
	// Columns returns the width of the terminal that a stream is; 0 if it is none.
	Columns func(io.Writer) int
	// Seconds ticks once a second until it is stopped.
	Seconds func() (ticks <-chan time.Time, stop func())
}

// app is one run of the program.
type app struct {
	Streams
	flags   flags
	current atomic.Pointer[progress]
}

// flags are those of every command.
type flags struct {
	stateDir, recordDir, confDir string
	pluginDirs                   string // a list, as CNI_PATH
	owner, builtin, hostNetNS    string
	json                         bool
	color                        string
	timeout                      time.Duration
}

// Builtin's values that are no lists of types.
const (
	builtinFallback = "fallback"
	builtinAll      = "all"
)

// options are the Runtime's that the global flags name.
func (a *app) options() []cni.Opt {
	f := &a.flags
	opts := []cni.Opt{
		cni.WithStateDir(f.stateDir), cni.WithPluginConfDir(f.confDir),
		// An operator's command removes only what it is told to.
		cni.WithoutReaping(),
		cni.WithLogger(a.logger()), cni.WithObserver(a.observe),
	}
	if f.owner != "" {
		opts = append(opts, cni.WithOwner(f.owner))
	}
	if dirs := filepath.SplitList(f.pluginDirs); len(dirs) > 0 {
		opts = append(opts, cni.WithPluginDir(dirs))
	}
	if f.recordDir != "" {
		opts = append(opts, cni.WithRecordDir(f.recordDir))
	}
	if f.hostNetNS != "" {
		opts = append(opts, cni.WithHostNetNS(f.hostNetNS))
	}
	switch f.builtin {
	case builtinFallback:
		opts = append(opts, cni.WithBuiltinFallback())
	case builtinAll:
		opts = append(opts, cni.WithBuiltinPlugins())
	default:
		opts = append(opts, cni.WithBuiltinPlugins(strings.Split(f.builtin, ",")...))
	}
	return opts
}

// open returns a Runtime without networks: enough for everything that goes by the records.
func (a *app) open(opts ...cni.Opt) (*cni.Runtime, error) {
	return cni.New(append(a.options(), opts...)...)
}

// openLoaded returns a Runtime with all networks of the configuration directory.
func (a *app) openLoaded(opts ...cni.Opt) (*cni.Runtime, error) {
	return a.open(append(opts, cni.WithAllConf)...)
}

// openAny returns a Runtime with the networks that can be loaded, for commands that go by the
// records and know more with the configurations. It says on stderr why there are none.
func (a *app) openAny(opts ...cni.Opt) (*cni.Runtime, error) {
	rt, err := a.open(opts...)
	if err != nil {
		return nil, err
	}
	if err := rt.Load(cni.WithAllConf); err != nil && (!cni.IsCNINotInitialized(err) || cni.IsInvalidConfig(err)) {
		fmt.Fprintf(a.Err, "The networks in %s are not known: %v\n", a.flags.confDir, err)
	}
	return rt, nil
}

// bounded is ctx with the deadline of --timeout.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.flags.timeout > 0 {
		return context.WithTimeout(ctx, a.flags.timeout)
	}
	return context.WithCancel(ctx)
}

// System are the streams of the process.
func System() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now, Columns: columns, Seconds: seconds}
}
