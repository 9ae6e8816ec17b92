package faults_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// faultyPlugin is the plugin that a fault describes.
const faultyPlugin = "testdata/faulty.sh"

// fault describes a fault plugin's actions, besides running the real one.
type fault struct {
	Real string // path of the real plugin
	Verb string // other verbs run the real plugin

	Network string // other networks run the real plugin; empty: all

	Kill   string        // "self", "parent" or "group": with SIGKILL
	At     string        // "before", "during" or "after" the real one
	Delay  time.Duration // run time of the real one, for "during"
	Hang   bool          // for good, at At
	Fork   bool          // a child that holds stdout and stderr, and hangs
	Exit   int           // at At, with Stdout as output
	Stdout *string       // replaces the real one's output
	Flood  int           // bytes of stdout
	Signal int           // sent to the real one at "during", instead of SIGKILL
	CopyTo string        // Copy is copied below it before and after the real one
	Copy   []string
}

// save writes the fault for the faulty plugin at a path.
func (f fault) save(plugin string) error {
	if f.Hang {
		f.Signal = int(syscall.SIGSTOP)
	}
	stdout := ""
	if f.Stdout != nil {
		stdout = *f.Stdout
	}
	var settings strings.Builder
	for name, value := range map[string]any{
		"real": f.Real, "verb": f.Verb, "network": f.Network, "kill": f.Kill, "at": f.At, "delay": f.Delay.Seconds(), "hang": f.Hang, "fork": f.Fork,
		"exit": f.Exit, "ends": f.Exit != 0 || f.Stdout != nil, "stdout": stdout, "flood": f.Flood, "signal": cmp.Or(f.Signal, int(syscall.SIGKILL)),
		"copies": f.CopyTo, "copied": strings.Join(f.Copy, " "),
	} {
		fmt.Fprintf(&settings, "%s='%v'\n", name, value)
	}
	return os.WriteFile(plugin+".fault", []byte(settings.String()), 0o600)
}
