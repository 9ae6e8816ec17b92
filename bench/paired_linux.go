package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// paired are the contenders of a pairing: a program before and after the change
// of its import line.
func paired() [2]contender { return [2]contender{goCNIPlain(), oneLine()} }

// usage is what a call took: time, processor time, and the number of times that a
// thread of the process or a program that it started gave up a processor.
type usage struct {
	Took, CPU time.Duration
	Switches  int64
}

// pair attaches and detaches containers in this process by both contenders, one
// container of each after the other, so that they share the machine's moment. The
// first of a pair takes turns.
func (w *worker) pair(ctx context.Context, o order) (reply, error) {
	var both [2]attacher
	for i, c := range paired() {
		s := w.spec
		s.Contender = c
		var err error
		if both[i], err = newAttacher(s); err != nil {
			return reply{}, err
		}
	}
	r := reply{Pairs: make(map[string][][2]usage)}
	for i := range o.Count {
		var adds, dels [2]usage
		for turn := range both {
			which := (i + turn) % 2
			c := container{N: i, ID: fmt.Sprintf("pair-%d-%d", i, which), Port: uint16(20000 + 2*i + which)}
			c.Path = filepath.Join(w.spec.RunDir, "netns", c.ID)
			var err error
			adds[which], dels[which], err = w.attachOne(ctx, both[which], c)
			if err != nil {
				return r, fmt.Errorf("%s: %w", paired()[which], err)
			}
		}
		r.Pairs[verbADD] = append(r.Pairs[verbADD], adds)
		r.Pairs[verbDEL] = append(r.Pairs[verbDEL], dels)
	}
	return r, nil
}

// attachOne measures an ADD and a DEL of a container in a namespace of its own.
func (*worker) attachOne(ctx context.Context, a attacher, c container) (add, del usage, err error) {
	ns, err := netns.Create(c.Path)
	if err != nil {
		return add, del, err
	}
	defer func() { err = errors.Join(err, ns.Close(), netns.Remove(c.Path)) }()
	if add, err = measureOne(func() error { return a.add(ctx, c) }); err != nil {
		return add, del, err
	}
	del, err = measureOne(func() error { return a.del(ctx, c) })
	return add, del, err
}

func measureOne(call func() error) (usage, error) {
	before, switchesBefore, err := spent()
	if err != nil {
		return usage{}, err
	}
	begun := time.Now()
	err = call()
	took := time.Since(begun)
	after, switches, serr := spent()
	return usage{took, after - before, switches - switchesBefore}, errors.Join(err, serr)
}

// spent returns the processor time of this process and its children, and their
// context switches.
func spent() (cpu time.Duration, switches int64, err error) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		err = errors.Join(err, unix.Getrusage(who, &u))
		cpu += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		switches += int64(u.Nvcsw) + int64(u.Nivcsw)
	}
	return cpu, switches, err
}
