package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// rewrite changes the base of a record but not its log.
func (l *living) rewrite(id string, change func(base []byte) []byte) (restore func()) {
	l.t.Helper()
	path := l.recordFile(id)
	whole := expect.Value(os.ReadFile(path))(l.t)
	base, log, _ := bytes.Cut(whole, []byte("\n"))
	expect.NoError(l.t, os.WriteFile(path, slices.Concat(change(base), []byte("\n"), log), 0o600))
	return func() { expect.NoError(l.t, os.WriteFile(path, whole, 0o600)) }
}

func (l *living) mended(right, wrong string) {
	l.attach("c1")
	good := l.set
	l.edit(right, wrong)
	l.mendedBy(good)
}

func (l *living) deviceless() {
	l.attach("c1")
	good := l.set
	l.set.Confs = [][]byte{[]byte(`{"cniVersion": "1.0.0", "name": "net0", "plugins": [{"type": "host-device", "device": "nowhere"}]}`)}
	l.mendedBy(good)
}

// mendedBy checks that the ID can be used again.
func (l *living) mendedBy(good settings) {
	l.t.Helper()
	l.mends++
	expect.Fails(l.t, "Setup succeeded", expect.Err(l.setup(l.set, "mistyped", ports(20000)...)))
	l.restart(l.set)
	l.set = good
	l.restart(l.set)
	_, err := l.setup(l.set, "mistyped", ports(20000)...)
	if err == nil {
		err = l.runtime(l.set).Remove(context.Background(), "mistyped", "")
	}
	if err != nil {
		l.wedged++
	}
	l.ok("the ID is wedged", err)
}

func (l *living) symlinked() {
	pool := l.beginHolder(l.set, "c1", "c2")
	expect.NoError(l.t, os.Symlink(l.path("state"), l.path("link")))
	for _, owner := range []string{"", "other"} {
		s := l.set
		s.Owner, s.StateDir = owner, l.path("link")
		l.restart(s)
		l.collect(s, "c1", "c2")
		l.restart(s)
	}
	pool.kill()
	for _, owner := range []string{"other", ""} {
		s := l.set
		s.Owner, s.StateDir = owner, l.path("link")
		l.restart(s)
	}
	l.restart(l.set)
}

func (l *living) damagedInPool() {
	l.beginHolder(l.set, "c1", "c2").kill()
	restore := l.rewrite("c1", func([]byte) []byte { return []byte("{") })
	other := l.set
	other.Owner = "other"
	l.restart(other)
	l.collect(other, "c1", "c2")
	restore()
	l.restart(l.set)
}

// twoPIDNamespaces: two daemons alternate, each with its own
// containers. Neither sees the other's process.
func (l *living) twoPIDNamespaces() {
	// They see each other's mounts, like daemons on one machine.
	expect.NoError(l.t, os.MkdirAll(l.path("state"), 0o755))
	expect.NoError(l.t, unix.Mount(l.path("state"), l.path("state"), "", unix.MS_BIND, ""))
	expect.NoError(l.t, unix.Mount("", l.path("state"), "", unix.MS_SHARED, ""))
	l.t.Cleanup(func() { expect.NoError(l.t, unix.Unmount(l.path("state"), unix.MNT_DETACH)) })
	l.attach("c1")
	as := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	var daemons []*process
	for n := range 2 {
		j := job{Verb: "TURNS", IDs: []string{fmt.Sprintf("a%d", n), fmt.Sprintf("b%d", n)}, NewProc: true, Settings: l.set}
		daemons = append(daemons, beginAs(l.t, j, as))
	}
	for _, p := range daemons {
		if killed, said := p.wait(); killed || said != "" {
			l.say("a daemon: %s", said)
		}
	}
	l.restart(l.set)
}
