//go:build linux

// Scheduler runs jobs with networks of their own until they end:
//
//	scheduler -state DIR JOBS.json
//
// A job is a program with ports, of which the program is told the host's as PORT_LABEL:
//
//	[{"ID": "web", "Program": ["/usr/bin/web"], "Ports": [{"Label": "HTTP", "ContainerPort": 80}]}]
//
// Jobs survive a scheduler that is killed: the next one goes on with those that still run
// in their networks, repairs these, and removes the networks of the others. An interrupt
// ends the jobs. It needs root, and no CNI plugins.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

const network = `{"cniVersion": "1.0.0", "name": "jobs", "plugins": [
	{"type": "bridge", "bridge": "jobs0", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.61.0.0/16"}]]}},
	{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall"}]}`

type job struct {
	ID      string
	Program []string
	Ports   []cni.Port
}

type scheduler struct {
	net   *cni.Runtime
	state string // the directory with the process IDs of jobs
}

func main() {
	state := flag.String("state", "/run/scheduler", "remember jobs in `DIR`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := schedule(ctx, *state, flag.Arg(0)); err != nil {
		log.Fatal("scheduler: ", err)
	}
}

func schedule(ctx context.Context, state, file string) error {
	var jobs []job
	text, err := os.ReadFile(file)
	if err == nil {
		err = errors.Join(json.Unmarshal(text, &jobs), os.MkdirAll(state, 0o700))
	}
	if err != nil {
		return err
	}
	rt, err := cni.New(cni.WithOwner("scheduler"), cni.WithConfListBytes([]byte(network)), cni.WithRetry(cni.Retry{Attempts: 3}))
	if err != nil {
		return err
	}
	s := &scheduler{rt, state}
	running, err := s.adopt(ctx, jobs)
	if err != nil {
		return err
	}
	guarding, stop := context.WithCancel(ctx)
	guard := make(chan error, 1)
	go func() { guard <- rt.Guard(guarding, cni.GuardOptions{}) }() // repairs networks, after a firewall reload for example
	var all sync.WaitGroup
	for _, j := range jobs {
		all.Add(1)
		go func() {
			defer all.Done()
			if err := s.run(ctx, j, running[j.ID]); err != nil {
				log.Printf("job %s: %v", j.ID, err)
			}
		}()
	}
	all.Wait()
	stop()
	return <-guard
}

// adopt returns the processes of jobs that run in their networks, as descriptors (see
// pidfd_open), and repairs these networks. It removes all others.
func (s *scheduler) adopt(ctx context.Context, jobs []job) (map[string]*os.File, error) {
	running := make(map[string]*os.File)
	var expected []cni.Expected
	for _, j := range jobs {
		text, err := os.ReadFile(s.pidFile(j.ID))
		if err != nil {
			continue // it was not started, or has ended
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			return nil, err
		}
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			running[j.ID] = os.NewFile(uintptr(fd), j.ID)
			expected = append(expected, cni.Expected{ContainerID: j.ID, NetNS: fmt.Sprintf("/proc/%d/ns/net", pid)})
		}
	}
	report, err := s.net.Reconcile(ctx, expected, cni.ReconcileOptions{})
	if err != nil {
		return nil, err
	}
	for _, c := range report.Containers {
		id := c.Health.ContainerID
		if c.Health.State == cni.StateElsewhere || c.Health.State == cni.StateGone { // another process has the ID by now
			report.Unexpected = append(report.Unexpected, id)
			delete(running, id)
			continue
		}
		log.Printf("job %s goes on: its network is %s", id, c.Health.State)
	}
	for _, id := range report.Unexpected {
		err = errors.Join(err, s.net.Remove(ctx, id, ""))
	}
	return running, err
}

func (s *scheduler) pidFile(id string) string { return filepath.Join(s.state, id+".pid") }

// run runs a job, or goes on with it, until it ends.
func (s *scheduler) run(ctx context.Context, j job, process *os.File) (err error) {
	defer func() {
		err = errors.Join(err, s.net.Remove(context.WithoutCancel(ctx), j.ID, ""), os.RemoveAll(s.pidFile(j.ID)))
	}()
	if process == nil {
		if process, err = s.start(ctx, j); err != nil {
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

func (s *scheduler) start(ctx context.Context, j job) (*os.File, error) {
	result, err := s.net.Setup(ctx, j.ID, "", cni.WithNewNetNS(), cni.WithPorts(j.Ports...))
	if err != nil {
		return nil, err
	}
	program := exec.Command(j.Program[0], j.Program[1:]...)
	program.Env = os.Environ()
	for _, p := range result.Requested {
		program.Env = append(program.Env, fmt.Sprintf("PORT_%s=%d", p.Label, p.HostPort))
	}
	ns, err := netns.Open(result.NetNS)
	if err == nil {
		err = errors.Join(ns.Do(program.Start), ns.Close())
	}
	if err != nil {
		return nil, err
	}
	pid := program.Process.Pid
	fd, err := unix.PidfdOpen(pid, 0)
	if err = errors.Join(err, os.WriteFile(s.pidFile(j.ID), []byte(strconv.Itoa(pid)), 0o600)); err != nil {
		return nil, errors.Join(err, program.Process.Kill())
	}
	go func() { log.Printf("job %s at %v has ended: %v", j.ID, result.IPv4().Prefix.Addr(), program.Wait()) }()
	log.Printf("job %s at %v with ports %v", j.ID, result.IPv4().Prefix.Addr(), result.Requested)
	return os.NewFile(uintptr(fd), j.ID), nil
}
