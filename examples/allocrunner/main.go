//go:build linux

// Allocrunner is a scheduler's client: it runs jobs with networks of their own until they end.
//
// Jobs survive an allocrunner that is killed: the next one goes on with those that still run
// in their networks, repairs these, and removes the networks of the others. An interrupt ends
// the jobs. It needs root and iptables, and no CNI plugins. Run one at a time.
//
// The jobs are attached to a network namespace that plays the machine, so that the bridge, the
// ports and the rules go with it when the last job has ended. With -host it is the machine's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/reconcile"
)

const usage = `usage: allocrunner [-host] JOBS.json

A job is a program with ports, of which the program is told the host's as PORT_LABEL:

	[{"ID": "web", "Program": ["/usr/bin/web"], "Ports": [{"Label": "HTTP", "ContainerPort": 80}]}]

An interrupt ends the jobs. The exit code is 0 when all have ended and nothing of their networks
is left, 1 after an error, and 2 for wrong arguments.

  -host  attach the jobs to the machine, where the bridge and the shared chains stay; else to
         the namespace ` + hostNetNS + `: ip netns exec allocrunner curl 10.61.0.2
`

const owner = "allocrunner"
const stateDir = "/var/lib/allocrunner"
const hostNetNS = "/run/netns/allocrunner"
const network = `{"cniVersion": "1.0.0", "name": "jobs", "plugins": [
	{"type": "bridge", "bridge": "jobs0", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "dataDir": "` + stateDir + `/networks", "ranges": [[{"subnet": "10.61.0.0/16"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}`

type job struct {
	ID      string
	Program []string
	Ports   []cni.Port
	Args    map[string]string // for plugins, in CNI_ARGS
}

func main() {
	host := flag.Bool("host", false, "")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := schedule(ctx, flag.Arg(0), *host); err != nil {
		log.Fatal("allocrunner: ", err)
	}
}

func schedule(ctx context.Context, file string, host bool) error {
	var jobs []job
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &jobs)
	}
	if err != nil {
		return err
	}
	opts := []cni.Opt{
		cni.WithOwner(owner), cni.WithStateDir(stateDir), cni.WithConfListBytes([]byte(network)), cni.WithRetry(cni.Retry{Attempts: 3}),
		cni.WithStrictPorts(), // no port that another program listens on
		cni.WithBuiltinFallback(),
	}
	if !host {
		if err := playHost(); err != nil {
			return err
		}
		opts = append(opts, cni.WithHostNetNS(hostNetNS))
	}
	rt, err := cni.New(opts...)
	if err != nil {
		return err
	}
	running, err := adopt(ctx, rt, jobs)
	if err != nil {
		return err
	}
	background, stop := context.WithCancel(ctx)
	guarded, retried := make(chan error, 1), make(chan error, 1)
	go func() { guarded <- guard.Run(background, rt, guard.Options{}) }() // repairs networks, after a firewall reload for example
	go func() { retried <- retry(background, rt, time.Tick(10*time.Second)) }()
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Go(func() {
			if err := run(ctx, rt, j, running[j.ID]); err != nil {
				log.Printf("job %s: %v", j.ID, err)
			}
		})
	}
	all.Wait()
	stop()
	return errors.Join(<-guarded, <-retried, leave(rt, host))
}

// playHost makes the namespace that plays the machine, unless an earlier allocrunner has.
func playHost() error {
	ns, err := netns.Create(hostNetNS)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	}), ns.Close())
}

// leave deletes what the last job has left: the namespace with its bridge and chains, and the
// records. They stay as long as a network could not be removed.
func leave(rt *cni.Runtime, host bool) error {
	attached, err := rt.Attachments()
	if err != nil {
		return err
	}
	if len(attached) > 0 {
		return fmt.Errorf("%d networks of jobs are not removed: the next allocrunner tries again", len(attached))
	}
	if !host {
		err = netns.Remove(hostNetNS)
	}
	return errors.Join(err, os.RemoveAll(stateDir))
}

// retry repeats removals that have failed, at each tick until ctx ends. A guard repairs, and
// removes nothing.
func retry(ctx context.Context, rt *cni.Runtime, ticks <-chan time.Time) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
		report, err := rt.RetryRemovals(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, id := range report.Removed {
			log.Printf("job %s: its network is removed at last", id)
		}
		for id, err := range report.Failed {
			log.Printf("job %s: its network is not removed: %v", id, err)
		}
	}
}

// adopt returns the jobs that run in their networks, whose records have the PIDs, as
// descriptors (see pidfd_open). It repairs these networks, and removes all others.
func adopt(ctx context.Context, rt *cni.Runtime, jobs []job) (map[string]*os.File, error) {
	attached, err := rt.Attachments()
	if err != nil {
		return nil, err
	}
	running := make(map[string]*os.File)
	var expected []reconcile.Expected
	for _, a := range attached {
		isJob := a.Owner == owner && slices.ContainsFunc(jobs, func(j job) bool { return j.ID == a.ContainerID })
		pid, err := strconv.Atoi(a.Metadata["pid"])
		if !isJob || err != nil {
			continue // nobody wants it, or its program was not started
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			running[a.ContainerID] = os.NewFile(uintptr(fd), a.ContainerID)
			expected = append(expected, reconcile.Expected{ContainerID: a.ContainerID, NetNS: fmt.Sprintf("/proc/%d/ns/net", pid)})
		} else if !errors.Is(err, unix.ESRCH) { // else it has ended
			return nil, err
		}
	}
	report, err := reconcile.Run(ctx, rt, expected, reconcile.Options{})
	if err != nil {
		return nil, err
	}
	for _, c := range report.Containers {
		id := c.Health.ContainerID
		if c.Health.State == cni.StateElsewhere || c.Health.State == cni.StateGone { // another process has the PID by now
			report.Unexpected = append(report.Unexpected, id)
			delete(running, id)
			continue
		}
		log.Printf("job %s goes on: its network is %s", id, c.Health.State)
	}
	for _, id := range report.Unexpected {
		err = errors.Join(err, remove(ctx, rt, id))
	}
	return running, err
}

// run runs a job, or goes on with it, until it ends.
func run(ctx context.Context, rt *cni.Runtime, j job, process *os.File) (err error) {
	defer func() { err = errors.Join(err, remove(ctx, rt, j.ID)) }() // after an interrupt too
	if process == nil {
		if process, err = start(ctx, rt, j); err != nil {
			return err
		}
	}
	defer process.Close()
	ended := make(chan error, 1)
	go func() {
		err := error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}, -1)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return errors.Join(unix.PidfdSendSignal(int(process.Fd()), unix.SIGKILL, nil, 0), <-ended)
	}
}

func start(ctx context.Context, rt *cni.Runtime, j job) (*os.File, error) {
	result, err := rt.Setup(ctx, j.ID, "", cni.WithNewNetNS(), cni.WithPorts(j.Ports...), cni.WithLabels(j.Args))
	if err != nil {
		return nil, err
	}
	program := exec.Command(j.Program[0], j.Program[1:]...)
	program.Env = os.Environ()
	for _, p := range result.Requested {
		program.Env = append(program.Env, fmt.Sprintf("PORT_%s=%d", p.Label, p.HostPort))
	}
	if err := netns.Do(result.NetNS, program.Start); err != nil {
		return nil, err
	}
	pid := program.Process.Pid
	fd, err := unix.PidfdOpen(pid, 0)
	if err = errors.Join(err, rt.SetMetadata(ctx, j.ID, map[string]string{"pid": strconv.Itoa(pid)})); err != nil {
		return nil, errors.Join(err, program.Process.Kill(), program.Wait())
	}
	go func() { log.Printf("job %s at %v has ended: %v", j.ID, result.IPv4().IP(), program.Wait()) }()
	log.Printf("job %s at %v with ports %v", j.ID, result.IPv4().IP(), result.Requested)
	return os.NewFile(uintptr(fd), j.ID), nil
}

// remove detaches a job. If a plugin is gone for good, CleanUp removes the leftovers of
// the reference plugins without running it.
func remove(ctx context.Context, rt *cni.Runtime, id string) error {
	err := rt.Remove(ctx, id, "")
	if !errors.Is(err, cni.ErrPluginNotFound) {
		return err
	}
	log.Printf("job %s is cleaned up by force: %v", id, err)
	attached, err := rt.Attachments()
	for _, a := range attached {
		if a.Owner == owner && a.ContainerID == id {
			_, cerr := rt.CleanUp(ctx, cni.CleanUpTarget{ContainerID: id, Network: a.Network, IfName: a.IfName})
			err = errors.Join(err, cerr)
		}
	}
	return err
}
