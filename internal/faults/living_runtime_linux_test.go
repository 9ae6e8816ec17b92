package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// restrict limits the process as the job says.
func (j job) restrict() error {
	if j.NewProc {
		// The host's mounts are private, except for the record directory.
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return err
		}
	}
	if j.Settings.Bus != "" {
		if err := os.Setenv("DBUS_SYSTEM_BUS_ADDRESS", j.Settings.Bus); err != nil {
			return err
		}
	}
	return nil
}

func (j job) doBesideTheLiving(ctx context.Context, r *cni.Runtime) error {
	switch j.Verb {
	case "RESTART":
		return expect.Reported(r.Recover(ctx))
	case "GC":
		return expect.Reported(r.GC(ctx, cni.GCOptions{Keep: j.Keep, KeepNone: true}))
	case "HOLD":
		return j.holdAll(ctx, r)
	case "TURNS":
		return j.turns(ctx, r)
	case "LEADER":
		return j.life(ctx, r)
	default:
		return fmt.Errorf("no such job: %q", j.Verb)
	}
}

// holdAll attaches containers in namespaces that it has Setup make, prints their paths
// and waits to be killed.
func (j job) holdAll(ctx context.Context, r *cni.Runtime) error {
	var paths []string
	for _, id := range j.IDs {
		result, err := r.Setup(ctx, id, "", cni.WithNewNetNS())
		if err != nil {
			return err
		}
		paths = append(paths, result.NetNS)
	}
	fmt.Println(strings.Join(paths, " "))
	scripted.Hang()
	return nil
}

// turns recovers, attaches containers, recovers again, and removes
// them, alternating with other processes. It fails if a container lacks its
// network after Setup returned nil.
func (j job) turns(ctx context.Context, r *cni.Runtime) error {
	var errs []error
	for range 5 {
		var paths []string
		for _, id := range j.IDs {
			result, err := r.Setup(ctx, id, "", cni.WithNewNetNS())
			if errs = append(errs, err); err != nil {
				return errors.Join(errs...)
			}
			paths = append(paths, result.NetNS)
			errs = append(errs, hasEth0(id, result.NetNS))
		}
		errs = append(errs, expect.Reported(r.Recover(ctx)))
		for i, id := range j.IDs {
			errs = append(errs, hasEth0(id, paths[i]), r.Remove(ctx, id, ""))
		}
	}
	return errors.Join(errs...)
}

// hasEth0 returns an error unless the container at path has its network.
func hasEth0(id, path string) error {
	err := netns.Do(path, func() error {
		_, err := net.InterfaceByName("eth0")
		return err
	})
	if err != nil {
		return fmt.Errorf("%s at %s: %w", id, filepath.Base(path), err)
	}
	return nil
}

// beginHolder starts a runtime that makes the containers' namespaces, and returns when it
// has attached the containers, which keep running.
func (l *living) beginHolder(s settings, ids ...string) *process {
	l.t.Helper()
	p := begin(l.t, job{Verb: "HOLD", IDs: ids, Settings: s})
	l.t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // unless the case has
	line, err := p.out.ReadString('\n')
	expect.Must(l.t, err == nil, "the runtime that makes namespaces: %q, %v", line, err)
	r := l.runtime(l.set)
	for i, path := range strings.Fields(line) {
		l.settle(ids[i], path, expect.Value(r.Lookup(ids[i]))(l.t))
	}
	return p
}

// ordinary is the ID of a user who has only the given privileges.
const ordinary = 1000

// asOrdinary returns the attributes of a process with the named capabilities.
func asOrdinary(capabilities ...uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}, AmbientCaps: capabilities}
}
