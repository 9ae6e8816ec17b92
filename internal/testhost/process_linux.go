package testhost

import (
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

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// otherRuntimeEnv makes the test binary another process with a Runtime.
const otherRuntimeEnv = "EMBEDCNI_TEST_OTHER_RUNTIME"

// Job is one call that another process makes on its own Runtime.
type Job struct {
	Verb, ID, NetNS                string
	StateDir, PluginDir, HostNetNS string
	Conf                           []byte

	Owner     string // empty: the program
	NewProc   bool   // first mount the /proc of its PID namespace
	InProcess bool
}

// OtherRuntime runs the job on stdin, prints its error and exits, if a test has
// started this process for that. A TestMain calls it first. more has the verbs
// that only its package has.
func OtherRuntime(more map[string]func(context.Context, *cni.Runtime, Job) error) {
	if os.Getenv(otherRuntimeEnv) == "" {
		return
	}
	var j Job
	err := json.NewDecoder(os.Stdin).Decode(&j)
	if err == nil {
		err = j.do(more)
	}
	if err != nil {
		fmt.Print(err)
	}
	syscall.Exit(0) // os.Exit sleeps with -race, see package scripted
}

func (j Job) do(more map[string]func(context.Context, *cni.Runtime, Job) error) error {
	if j.NewProc {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
			return err
		}
	}
	opts := []cni.Opt{cni.WithStateDir(j.StateDir), cni.WithPluginDir([]string{j.PluginDir}),
		cni.WithHostNetNS(j.HostNetNS), cni.WithConfListBytes(j.Conf), cni.WithBuiltinFallback()}
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
	ctx := context.Background() // the test kills the process
	switch j.Verb {
	case "ADD":
		_, err = r.Setup(ctx, j.ID, j.NetNS)
	case "DEL":
		err = r.Remove(ctx, j.ID, j.NetNS)
	case "CHECK":
		err = r.Check(ctx, j.ID, j.NetNS)
	case "RECOVER":
		report, rerr := r.Recover(ctx)
		if err = rerr; err == nil {
			err = fmt.Errorf("%v", *report)
		}
	case "GC":
		_, err = r.GC(ctx, cni.GCOptions{Keep: []string{j.ID}})
	default:
		err = fmt.Errorf("no such job: %q", j.Verb)
		if do := more[j.Verb]; do != nil {
			err = do(ctx, r, j)
		}
	}
	return err
}

// Command returns a process that runs the job. It is killed when the test ends.
func (j Job) Command(t testing.TB) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/proc/self/exe") // an ordinary user may not be able to read the path
	cmd.Args[0] = os.Args[0]                          // the program's name is the owner
	cmd.Env = append(os.Environ(), otherRuntimeEnv+"=1")
	cmd.Stdin = bytes.NewReader(expect.Value(json.Marshal(j))(t))
	return cmd
}

// Elsewhere starts a verb in another process. The channel gets that process's
// output: the error, or nothing.
func (s *Stage) Elsewhere(conf []byte, verb, id, path string) <-chan string {
	s.T.Helper()
	_, done := s.ProcessFor(Job{Verb: verb, ID: id, NetNS: path, Conf: conf}, nil)
	return done
}

// ProcessFor starts a process for any job on the host, in new namespaces if attr says so.
// Its plugins are those of [Host.Plugin], unless the job names a directory.
func (h *Host) ProcessFor(j Job, attr *syscall.SysProcAttr) (*os.Process, <-chan string) {
	h.T.Helper()
	j.StateDir, j.PluginDir, j.HostNetNS = h.Path("state"), cmp.Or(j.PluginDir, h.Path("bin")), h.Path("netns", "host")
	cmd := j.Command(h.T)
	cmd.SysProcAttr = attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	expect.NoError(h.T, cmd.Start())
	done := make(chan string, 1)
	go func() {
		if err := cmd.Wait(); err != nil {
			fmt.Fprint(&out, err)
		}
		done <- out.String()
	}()
	return cmd.Process, done
}
