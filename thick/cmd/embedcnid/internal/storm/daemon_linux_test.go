package storm

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// daemon is an embedcnid that runs. Its log, of which each plugin's end is a line, says what it
// was doing when it was killed.
type daemon struct {
	*node
	cmd     *exec.Cmd
	stamp   string
	begun   time.Time
	serving chan struct{} // closed when it serves
	read    chan struct{} // closed when its log is read
	mu      sync.Mutex
	lines   []entry
	served  time.Time
	waiting []waiting
}

// entry is a line of the log.
type entry struct {
	Msg, Version, Operation, Plugin, Container, Verb, Outcome, Level, Error string
}

type waiting struct {
	for_ func(entry) bool
	came chan struct{}
}

// start starts a build of the daemon.
func (n *node) start(stamp string) *daemon {
	n.t.Helper()
	d := &daemon{node: n, stamp: stamp, begun: time.Now(), serving: make(chan struct{}), read: make(chan struct{})}
	d.cmd = exec.Command(filepath.Join(n.programs, stamp), "--config", daemonConf, "--log.format=json", "--log.level=debug")
	r, w, err := os.Pipe()
	expect.NoError(n.t, err)
	d.cmd.Stderr = w
	expect.NoError(n.t, netns.Do(n.host, d.cmd.Start), w.Close())
	go d.follow(r)
	return d
}

func (d *daemon) follow(r *os.File) {
	defer close(d.read)
	defer r.Close()
	for lines := bufio.NewScanner(r); lines.Scan(); {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = entry{Msg: lines.Text()}
		}
		d.mu.Lock()
		d.lines = append(d.lines, e)
		if e.Msg == "serving" {
			d.served = time.Now()
			close(d.serving)
		}
		for i, w := range d.waiting {
			if w.for_ != nil && w.for_(e) {
				close(w.came)
				d.waiting[i].for_ = nil
			}
		}
		d.mu.Unlock()
	}
}

// await returns a channel that is closed after the next line for which holds is true.
func (d *daemon) await(holds func(entry) bool) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	came := make(chan struct{})
	d.waiting = append(d.waiting, waiting{holds, came})
	return came
}

// serves waits until it serves, and checks that it is the build that was started.
func (d *daemon) serves() {
	d.t.Helper()
	select {
	case <-d.serving:
	case <-d.read:
	case <-time.After(expect.Patience):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.lines {
		if e.Msg == "serving" {
			expect.Same(d.t, "version", e.Version, d.stamp)
			return
		}
	}
	d.t.Fatalf("the daemon does not serve: %+v", d.lines)
}

// kill kills it, and returns what it was doing, by its log.
func (d *daemon) kill() (doing []string) {
	d.t.Helper()
	expect.NoError(d.t, d.cmd.Process.Kill(), ignoreExit(d.cmd.Wait()))
	<-d.read
	last := map[string]string{}
	for _, e := range d.lines {
		switch {
		case e.Operation != "":
			last[e.Operation+" "+e.Container] = e.Operation + " after " + e.Plugin
		case e.Verb != "":
			delete(last, e.Verb+" "+e.Container)
		case e.Msg == "queued DEL":
			delete(last, "DEL "+e.Container)
		case e.Msg == "recovered":
			clear(last)
		}
	}
	for what, where := range last {
		if strings.HasPrefix(what, "ADD ") || strings.HasPrefix(what, "DEL ") {
			doing = append(doing, where)
		}
	}
	return doing
}
