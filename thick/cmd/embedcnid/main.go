// Embedcnid is the daemon of a node that attaches containers to networks for the plugin
// embedcni-shim: for a runtime alone, such as containerd, CRI-O or nerdctl, or for Kubernetes.
// docs/operating.md says how it is installed and what its keys mean. It is for Linux, and needs
// root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/daemon"
)

// defaultFile is the file of the configuration.
const defaultFile = "/etc/embedcni/embedcnid.yaml"

// release is the version of a package of the program, set by its maker:
//
//	go build -ldflags "-X main.release=v0.1.0"
var release = "(built from the tree)"

const usage = `usage: embedcnid [--config FILE] [--check] [--KEY VALUE ...]

Embedcnid attaches containers to networks for the plugin embedcni-shim.

  --config FILE  the configuration, in YAML or JSON (default ` + defaultFile + `);
                 it is read again when it changes, and at SIGHUP. Empty: none is read.
  --check        prints what is wrong with the configuration, the conflists and the
                 directories, and exits with 1 if anything is.
  --version      prints the version, and those of CNI.

Each key of the file is a flag too, such as --log.level debug, and wins over the file; lists are
separated by commas. A dot separates a section: "log.level" is the key level of log. Keys, their
defaults, and whether a change is in force at once (live) or after a restart:

`

func main() {
	// The first signal lets calls end; a second one kills.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code: 1 if it fails or finds anything, 2 if the
// command line is wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("embedcnid", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path := flags.String("config", defaultFile, "")
	check := flags.Bool("check", false, "")
	version := flags.Bool("version", false, "")
	var keys config.Flags
	keys.Register(flags)
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		if err := config.WriteKeys(stdout); err != nil {
			return 1
		}
		return 0
	case err == nil && *version:
		fmt.Fprintf(stdout, "embedcnid %s, %s, CNI %s\n", release, runtime.Version(), strings.Join(cniversion.All.SupportedVersions(), " "))
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
		fallthrough
	case err != nil:
		fmt.Fprintf(stderr, "embedcnid: %v; see --help\n", err)
		return 2
	}
	load := func() (config.Config, error) {
		c, err := config.Load(*path, &keys)
		if err == nil {
			err = daemon.Verify(&c)
		}
		return c, err
	}
	if *check {
		return printFindings(load, stdout)
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	if err := daemon.Run(ctx, daemon.Options{Version: release, Path: *path, Load: load, Log: stderr, Hangup: hangup}); err != nil {
		fmt.Fprintf(stderr, "embedcnid: %v\n", err)
		return 1
	}
	return 0
}

// printFindings prints what is wrong, a line for each.
func printFindings(load func() (config.Config, error), stdout io.Writer) int {
	c, err := load()
	var findings []error
	if err != nil {
		findings = config.Findings(err)
	} else {
		findings = daemon.Check(&c)
	}
	for _, f := range findings {
		fmt.Fprintln(stdout, f)
	}
	if len(findings) > 0 {
		return 1
	}
	fmt.Fprintln(stdout, "nothing is wrong")
	return 0
}
