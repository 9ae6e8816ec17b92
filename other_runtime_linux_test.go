package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
)

// otherRuntimeEnv makes the test binary another process with a Runtime.
const otherRuntimeEnv = "EMBEDCNI_TEST_OTHER_RUNTIME"

func isOtherRuntime() bool { return os.Getenv(otherRuntimeEnv) != "" }

// job is what another runtime is to do, once.
type job struct {
	Verb, ID, NetNS                string
	StateDir, PluginDir, HostNetNS string
	Conf                           []byte

	Owner     string // empty: the program
	NewProc   bool   // first mount the /proc of the PID namespace that it was started in
	WarmOnly  bool   // what a pool has made is not used
	InProcess bool
	Reaps     string // children: "ignores SIGCHLD" or "waits for all"
}

// otherRuntime does the job on stdin; what it prints is the error.
func otherRuntime() {
	var j job
	err := json.NewDecoder(os.Stdin).Decode(&j)
	if err == nil {
		err = j.do()
	}
	if err != nil {
		fmt.Print(err)
	}
	syscall.Exit(0) // os.Exit sleeps with -race, see scripted.Main
}

func (j job) do() error {
	if j.NewProc {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
			return err
		}
	}
	switch j.Reaps {
	case "ignores SIGCHLD":
		signal.Ignore(syscall.SIGCHLD)
	case "waits for all":
		go func() {
			for { // with no child there is nothing to wait for
				if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil {
					runtime.Gosched()
				}
			}
		}()
	}
	opts := []cni.Opt{cni.WithStateDir(j.StateDir), cni.WithPluginDir([]string{j.PluginDir}),
		cni.WithHostNetNS(j.HostNetNS), cni.WithConfListBytes(j.Conf)}
	if j.Owner != "" {
		opts = append(opts, cni.WithOwner(j.Owner))
	}
	if j.InProcess {
		opts = append(opts, cni.WithBuiltinPlugins())
	}
	r, err := cni.New(opts...)
	if err != nil {
		return err
	}
	ctx := context.Background() // the test that started the process kills it
	switch j.Verb {
	case "ADD":
		_, err = r.Setup(ctx, j.ID, j.NetNS)
	case "REAP": // and attach
		if _, err = r.Setup(ctx, j.ID, j.NetNS); err == nil {
			_, err = r.Reap(ctx)
		}
	case "POOLED": // which it leaves as it is
		var p *cni.Pool
		if p, err = r.NewPool(cni.PoolOptions{Size: 1}); err == nil {
			var path string
			path, _, err = p.Setup(ctx, j.ID)
			fmt.Print(path)
		}
	case "DEL":
		err = r.Remove(ctx, j.ID, j.NetNS)
	case "CHECK":
		err = r.Check(ctx, j.ID, j.NetNS)
	case "POOL":
		err = j.pool(ctx, r)
	case "EXEC":
		err = j.pool(ctx, r)
		if err == nil {
			j.Verb = "RECOVER"
			err = j.exec()
		}
	case "RECOVER":
		report, rerr := r.Recover(ctx)
		if err = rerr; err == nil {
			err = fmt.Errorf("%v", *report)
		}
	case "GC":
		_, err = r.GC(ctx, cni.GCOptions{Keep: []string{j.ID}})
	case "LIFE":
		err = life(ctx, r, j.ID, j.NetNS)
	default:
		err = fmt.Errorf("no such job: %q", j.Verb)
	}
	return err
}

// pool makes a pool of one, waits until that is ready, and uses it unless
// WarmOnly. It is never closed.
func (j job) pool(ctx context.Context, r *cni.Runtime) error {
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	if err != nil {
		return err
	}
	for p.Ready() == 0 {
		time.Sleep(time.Millisecond)
	}
	if j.WarmOnly {
		return nil
	}
	_, _, err = p.Setup(ctx, j.ID)
	return err
}

// exec has the process execute itself, to do the job.
func (j job) exec() error {
	input, err := json.Marshal(j)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	if _, err := w.Write(input); err != nil { // less than a pipe holds
		return err
	}
	if err := errors.Join(w.Close(), unix.Dup2(int(r.Fd()), 0)); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// life is all that a runtime does with a container, each way to remove it once.
func life(ctx context.Context, r *cni.Runtime, id, path string) error {
	for _, remove := range []func() error{
		func() error { return r.Remove(ctx, id, path) },
		func() error {
			report, err := r.GC(ctx, cni.GCOptions{KeepNone: true})
			return errors.Join(err, report.Err())
		},
	} {
		if _, err := r.Setup(ctx, id, path, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}})); err != nil {
			return err
		}
		if err := r.Check(ctx, id, path); err != nil {
			return err
		}
		report, err := r.Recover(ctx)
		if err = errors.Join(err, report.Err()); err != nil {
			return err
		}
		if err := r.Check(ctx, id, path); err != nil {
			return fmt.Errorf("after Recover (%+v): %w", report, err)
		}
		if err := remove(); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere begins a verb in another process. What comes from the channel is
// what that process printed: the error, or nothing.
func (s *stage) elsewhere(conf []byte, verb, id, path string) <-chan string {
	s.t.Helper()
	_, done := s.process(conf, verb, id, path)
	return done
}

// process is elsewhere for who wants to kill the process, or to give it another
// environment.
func (s *stage) process(conf []byte, verb, id, path string, env ...string) (*os.Process, <-chan string) {
	s.t.Helper()
	return s.processFor(job{Verb: verb, ID: id, NetNS: path, Conf: conf}, nil, env...)
}

// processFor is process for any job, in namespaces of its own if attr says so.
func (s *stage) processFor(j job, attr *syscall.SysProcAttr, env ...string) (*os.Process, <-chan string) {
	s.t.Helper()
	j.StateDir, j.PluginDir, j.HostNetNS = s.path("state"), s.path("bin"), s.path("netns", "host")
	input, err := json.Marshal(j)
	wantNil(s.t, err)
	exe, err := os.Executable()
	wantNil(s.t, err)
	cmd := exec.CommandContext(s.t.Context(), exe)
	cmd.SysProcAttr = attr
	cmd.Env = append(append(os.Environ(), otherRuntimeEnv+"=1"), env...)
	cmd.Stdin = bytes.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wantNil(s.t, cmd.Start())
	done := make(chan string, 1)
	go func() {
		if err := cmd.Wait(); err != nil {
			fmt.Fprint(&out, err)
		}
		done <- out.String()
	}()
	return cmd.Process, done
}
