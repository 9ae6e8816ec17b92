package faults_test

import (
	"time"

	"github.com/embedcni/cni/internal/scripted"
)

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
	Stderr int           // bytes of stderr
	Flood  int           // bytes of stdout
	Signal int           // sent to the real one at "during", instead of SIGKILL
	CopyTo string        // Copy is copied below it before and after the real one
	Copy   []string
}

// save writes the fault for the scripted plugin at a path.
func (f fault) save(plugin string) error {
	s := scripted.Script{Real: f.Real, Network: f.Network, CopyTo: f.CopyTo, Copy: f.Copy}
	if f.Verb != "" {
		s.Verbs = map[string]scripted.Action{f.Verb: {At: f.At, Delay: f.Delay, Kill: f.Kill, Hang: f.Hang, Fork: f.Fork,
			Exit: f.Exit, Stdout: f.Stdout, StderrBytes: f.Stderr, StdoutBytes: f.Flood, Signal: f.Signal}}
	}
	return s.Save(plugin + scripted.Beside)
}
