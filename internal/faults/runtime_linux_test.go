package faults_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// runtimeEnv makes the test binary a process with a Runtime.
const runtimeEnv = "EMBEDCNI_TEST_FAULTS_RUNTIME"

func isRuntime() bool { return os.Getenv(runtimeEnv) != "" }

// job is a runtime's task.
type job struct {
	Verb      string // ADD, DEL, CHECK, REPAIR, HEALTH, GUARD, or RECOVER: Recover, then GC of everything unless Adopt
	Adopt     bool
	ID, NetNS string
	Makes     bool // ADD makes the namespace, and DEL deletes it
	Port      int32
	Settings  settings

	// For living containers there are RESTART, which is Recover alone, GC, POOL
	// and TURNS.
	Keep    []string // by GC
	IDs     []string // the containers that POOL attaches once, and TURNS in each turn
	NewProc bool     // mount the /proc of its PID namespace

	// For importers' patterns there are LEADER and CALLS.
}

// settings holds the parameters of a Runtime.
type settings struct {
	StateDir, HostNetNS string
	Bus                 string // of a firewalld, for a separate process
	Owner               string // empty: "faults"
	PluginDirs          []string
	BuiltIn             bool // use the built-in plugins
	Confs               [][]byte
	Timeouts            cni.Timeouts
}

func (s settings) runtime() (*cni.Runtime, error) {
	opts := []cni.Opt{cni.WithStateDir(s.StateDir), cni.WithPluginDir(s.PluginDirs), cni.WithOwner(cmp.Or(s.Owner, "faults")),
		cni.WithHostNetNS(s.HostNetNS), cni.WithTimeouts(s.Timeouts)}
	if s.BuiltIn {
		opts = append(opts, cni.WithBuiltinPlugins())
	} else {
		opts = append(opts, cni.WithBuiltinFallback())
	}
	for _, conf := range s.Confs {
		opts = append(opts, cni.WithConfListBytes(conf))
	}
	return cni.New(opts...)
}

// runtimeMain runs the job on stdin. It prints a line when it begins, which
// starts a killer's timer, and then the error, if any.
func runtimeMain() {
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		j.say(err)
	}
	work := func() { j.say(j.do(func() { fmt.Println("begun") })) }
	if j.Verb == "LEADER" {
		parkLeader(j.NetNS, work)
	}
	work()
}

// say prints the error, if any, and ends the process.
func (j job) say(err error) {
	if err != nil {
		fmt.Print(err)
	}
	syscall.Exit(0)
}

func (j job) do(begun func()) error {
	if err := j.restrict(); err != nil {
		return err
	}
	r, err := j.Settings.runtime()
	if err != nil {
		return err
	}
	ctx := context.Background() // the parent may kill the process
	begun()
	switch j.Verb {
	case "ADD":
		opts := ports(j.Port)
		if j.Makes {
			opts = append(opts, cni.WithNewNetNS())
		}
		_, err = r.Setup(ctx, j.ID, j.NetNS, opts...)
	case "DEL":
		err = r.Remove(ctx, j.ID, j.NetNS)
	case "CHECK":
		err = r.Check(ctx, j.ID, j.NetNS)
	case "REPAIR":
		err = repairOf(ctx, r, j.ID)
	case "HEALTH":
		err = healthOf(ctx, r, j.ID)
	case "GUARD":
		err = guardAloud(ctx, r)
	case "RECOVER":
		err = recoverAll(ctx, r, j.Adopt)
	default:
		err = j.doBesideTheLiving(ctx, r)
	}
	return err
}

// repairOf returns an error unless a Repair leaves the container healthy.
func repairOf(ctx context.Context, r *cni.Runtime, id string) error {
	return expect.Reported(r.Repair(ctx, id, cni.RepairOptions{}))
}

// healthOf returns an error unless the container is healthy.
func healthOf(ctx context.Context, r *cni.Runtime, id string) error {
	report, err := r.Health(ctx, cni.HealthOptions{Containers: []string{id}})
	if err != nil {
		return err
	}
	health, ok := testhost.VerdictOn(report, id)
	if !ok {
		return fmt.Errorf("no verdict on %s", id)
	}
	return health.Err()
}

func recoverAll(ctx context.Context, r *cni.Runtime, adopt bool) error {
	report, err := r.Recover(ctx)
	if err != nil {
		return err
	}
	if err := report.Err(); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if adopt {
		if len(report.Adopted) != 1 || len(report.Kept) != 0 || len(report.Removed) != 0 {
			return fmt.Errorf("recover: %+v, want one adopted", *report)
		}
		return nil
	}
	return expect.Reported(r.GC(ctx, cni.GCOptions{KeepNone: true}))
}

func ports(port int32) []cni.NamespaceOpts {
	if port == 0 {
		return nil
	}
	return []cni.NamespaceOpts{cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: port, ContainerPort: 80, Protocol: "tcp"}, {HostPort: port, ContainerPort: 53, Protocol: "udp"}})}
}

// process is a runtime at work in another process.
type process struct {
	t   testing.TB
	cmd *exec.Cmd
	out *bufio.Reader
}

// begin starts a runtime and returns when the job begins.
func begin(t testing.TB, j job) *process { t.Helper(); return beginAs(t, j, nil) }

// beginAs is begin as another user, or in other namespaces.
func beginAs(t testing.TB, j job, as *syscall.SysProcAttr) *process {
	t.Helper()
	p := start(t, j, as)
	line, err := p.out.ReadString('\n')
	expect.Must(t, line == "begun\n", "the runtime did not begin: %q, %v", line, err)
	return p
}

// start is begin for a runtime that may fail to begin.
func start(t testing.TB, j job, as *syscall.SysProcAttr) *process {
	t.Helper()
	in := expect.Value(json.Marshal(j))(t)
	p := &process{t: t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.SysProcAttr = as
	p.cmd.Env = append(os.Environ(), runtimeEnv+"=1")
	p.cmd.Stdin = bytes.NewReader(in)
	p.cmd.Stderr = os.Stderr
	out := expect.Value(p.cmd.StdoutPipe())(t)
	expect.NoError(t, p.cmd.Start())
	p.out = bufio.NewReader(out)
	return p
}

// kill kills the runtime, and reports whether it was still at work.
func (p *process) kill() bool {
	p.t.Helper()
	err := p.cmd.Process.Kill()
	expect.Must(p.t, err == nil || errors.Is(err, os.ErrProcessDone), "%v", err)
	killed, said := p.wait()
	expect.That(p.t, said == "" || killed, "the runtime that was to be killed: %s", said)
	return killed
}

// wait returns whether the runtime was killed, and its error.
func (p *process) wait() (killed bool, said string) {
	p.t.Helper()
	var text bytes.Buffer
	// Plugins have their own pipes, so this one is not held open by them.
	expect.Value(text.ReadFrom(p.out))(p.t)
	err := p.cmd.Wait()
	var exit *exec.ExitError
	expect.Must(p.t, err == nil || errors.As(err, &exit), "%v", err)
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled(), text.String()
}

// elsewhere runs the job in another process and returns its error.
func elsewhere(t testing.TB, j job) error {
	t.Helper()
	killed, said := begin(t, j).wait()
	switch {
	case killed:
		return errors.New("the runtime was killed")
	case said != "":
		return errors.New(said)
	}
	return nil
}
