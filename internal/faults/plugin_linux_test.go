package faults_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// fault describes a fault plugin's actions, besides running the real one. It is
// in <type>.json next to the link to the test binary, and is read at each call.
type fault struct {
	Real string // path of the real plugin
	Verb string // other verbs run the real plugin

	Network string // other networks run the real plugin; empty: all

	Kill   string        // "self", "parent" or "group": with SIGKILL
	At     string        // "before", "during" or "after" the real one
	Delay  time.Duration // run time of the real one, for "during"
	Hang   bool          // for good, at At
	Fork   bool          // a child that holds stdout and stderr, and hangs
	Exit   int           // at At, with Stdout as output
	Stdout *string       // replaces the real one's output
	Stderr int           // bytes of stderr
	Flood  int           // bytes of stdout
	Signal int           // sent to the real one at "during", instead of SIGKILL
	CopyTo string        // Copy is copied below it before and after the real one
	Copy   []string
}

func (f fault) save(path string) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

func isPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// hangArg makes the process the child that Fork leaves behind.
const hangArg = "fault-hang"

// pluginMain runs the plugin. It never returns, and does not call os.Exit,
// which sleeps in a binary built with -race.
func pluginMain() {
	if len(os.Args) > 1 && os.Args[1] == hangArg {
		hang()
	}
	code, err := pluginRun()
	if err != nil {
		fmt.Printf(`{"code": 999, "msg": %q}`, "fault plugin: "+err.Error())
		code = 1
	}
	syscall.Exit(code)
}

func hang() {
	// A pipe that never has data: it waits for good without a timer.
	r, _, err := os.Pipe()
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	panic(fmt.Sprint("the wait that never ends has ended: ", err))
}

func pluginRun() (int, error) {
	f, err := loadFault(os.Args[0] + ".json")
	if err != nil {
		return 0, err
	}
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 0, err
	}
	if err := f.copy("before"); err != nil {
		return 0, err
	}
	var conf struct{ Name string }
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return 0, err
	}
	on := f.Verb == os.Getenv("CNI_COMMAND") && (f.Network == "" || f.Network == conf.Name)
	if on && f.At == "before" {
		if done, code, err := f.strike(nil); done {
			return code, err
		}
	}
	out, code, err := f.runReal(stdin, on)
	if err != nil {
		return 0, err
	}
	if err := f.copy("after"); err != nil {
		return 0, err
	}
	if on && f.At == "after" {
		if done, code, err := f.strike(out); done {
			return code, err
		}
	}
	_, err = os.Stdout.Write(out)
	return code, err
}

func loadFault(path string) (f fault, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(data, &f)
}

// runReal runs the real plugin to its end, unless it is killed.
func (f fault) runReal(stdin []byte, on bool) (out []byte, code int, err error) {
	cmd := exec.Command(f.Real)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	// The real plugin must inherit the container's lock too.
	cmd.ExtraFiles = inheritedFiles()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	if on && f.At == "during" {
		timer := time.AfterFunc(f.Delay, func() { f.interrupt(cmd.Process) })
		defer timer.Stop()
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return nil, 0, err
	}
	if code = cmd.ProcessState.ExitCode(); code < 0 {
		// The real one was killed, so this process dies in the same way.
		return nil, 0, syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return stdout.Bytes(), code, nil
}

// inheritedFiles returns the files that the runtime passed on.
func inheritedFiles() []*os.File {
	var files []*os.File
	for fd := uintptr(3); fd < 16; fd++ {
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err == nil && filepath.Base(target) == "locks" {
			files = append(files, os.NewFile(fd, target))
		}
	}
	return files
}

// interrupt strikes while the real plugin works. The real one's children, such
// as iptables, keep running.
func (f fault) interrupt(real *os.Process) {
	switch {
	case f.Kill == "parent":
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL) // it may be gone already
	case f.Kill == "group":
		_ = syscall.Kill(0, syscall.SIGKILL)
	case f.Hang:
		_ = real.Signal(syscall.SIGSTOP)
	case f.Signal != 0:
		_ = real.Signal(syscall.Signal(f.Signal))
	default:
		_ = real.Kill()
	}
}

// strike runs the actions before or after the real plugin. If done, code is the
// process's exit code.
func (f fault) strike(out []byte) (done bool, code int, err error) {
	if f.Fork {
		child := exec.Command("/proc/self/exe", hangArg)
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			return true, 0, err
		}
	}
	switch f.Kill {
	case "self":
		return true, 0, syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "group":
		return true, 0, syscall.Kill(0, syscall.SIGKILL)
	case "parent":
		return false, 0, syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
	if err := f.print(); err != nil {
		return true, 0, err
	}
	if f.Hang {
		hang()
	}
	if f.Exit == 0 && f.Stdout == nil {
		return false, 0, nil
	}
	return true, f.Exit, nil
}

func (f fault) print() error {
	if _, err := os.Stderr.WriteString(strings.Repeat("x", f.Stderr)); err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString(strings.Repeat("x", f.Flood)); err != nil {
		return err
	}
	if f.Stdout == nil {
		return nil
	}
	_, err := os.Stdout.WriteString(*f.Stdout)
	return err
}

// copy saves the directories' present content in a directory named after the
// next number, the verb and the plugin.
func (f fault) copy(when string) error {
	if f.CopyTo == "" {
		return nil
	}
	earlier, err := os.ReadDir(f.CopyTo)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	step := fmt.Sprintf("%02d %s %s %s", len(earlier), os.Getenv("CNI_COMMAND"), when, filepath.Base(os.Args[0]))
	for _, dir := range f.Copy {
		if err := copyDir(dir, filepath.Join(f.CopyTo, step, filepath.Base(dir))); err != nil {
			return err
		}
	}
	return nil
}

// copyDir copies the content of the disk: a mounted namespace becomes an empty
// file.
func copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, syscall.EINVAL) {
			data, err = nil, nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}
