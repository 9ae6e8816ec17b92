package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

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
	r, err := cni.New(cni.WithStateDir(j.StateDir), cni.WithPluginDir([]string{j.PluginDir}),
		cni.WithHostNetNS(j.HostNetNS), cni.WithConfListBytes(j.Conf))
	if err != nil {
		return err
	}
	ctx := context.Background() // the test that started the process kills it
	switch j.Verb {
	case "ADD":
		_, err = r.Setup(ctx, j.ID, j.NetNS)
	case "DEL":
		err = r.Remove(ctx, j.ID, j.NetNS)
	case "GC":
		_, err = r.GC(ctx, cni.GCOptions{Keep: []string{j.ID}})
	default:
		err = fmt.Errorf("no such job: %q", j.Verb)
	}
	return err
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
	input, err := json.Marshal(job{
		Verb: verb, ID: id, NetNS: path, Conf: conf,
		StateDir: s.path("state"), PluginDir: s.path("bin"), HostNetNS: s.path("netns", "host"),
	})
	wantNil(s.t, err)
	exe, err := os.Executable()
	wantNil(s.t, err)
	cmd := exec.CommandContext(s.t.Context(), exe)
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
