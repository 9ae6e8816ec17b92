//go:build unix

package scripted

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// around runs the real plugin, and the verb's action before, during or after it.
func (s Script) around(stdin []byte, network string) (code int, err error) {
	verb := os.Getenv("CNI_COMMAND")
	action := s.Verbs[verb]
	if s.Network != "" && s.Network != network {
		action = Action{}
	}
	var out []byte
	for _, moment := range []string{"before", "during", "after"} {
		if moment == "during" {
			if out, code, err = s.runReal(stdin, action); err != nil {
				return 0, err
			}
			continue
		}
		if err := s.copy(verb + " " + moment); err != nil {
			return 0, err
		}
		if action.At == moment {
			if err := action.do(); err != nil || action.ends() {
				return action.Exit, err
			}
		}
	}
	_, err = os.Stdout.Write(out)
	return code, err
}

// ends reports whether the action's output and code are the plugin's.
func (a Action) ends() bool { return a.Exit != 0 || a.Stdout != nil }

// runReal runs the real plugin to its end, unless it is killed.
func (s Script) runReal(stdin []byte, a Action) (out []byte, code int, err error) {
	cmd := exec.Command(s.Real)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	// The real plugin must inherit the container's lock too.
	for _, fd := range lockFds() {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "locks"))
	}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	if a.At == "during" {
		timer := time.AfterFunc(a.Delay, func() { a.interrupt(cmd.Process) })
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

// interrupt acts while the real plugin works. The real one's children, such as iptables,
// keep running.
func (a Action) interrupt(real *os.Process) {
	switch {
	case a.Kill == "parent" || a.Kill == "group":
		_ = a.kill() // they may be gone already
	case a.Hang:
		_ = real.Signal(syscall.SIGSTOP)
	case a.Signal != 0:
		_ = real.Signal(syscall.Signal(a.Signal))
	default:
		_ = real.Kill()
	}
}

// kill kills with SIGKILL.
func (a Action) kill() error {
	switch a.Kill {
	case "self":
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "group":
		return syscall.Kill(0, syscall.SIGKILL)
	case "parent":
		return syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
	return nil
}

// copy saves the directories' present content in a directory named after the next
// number, the moment and the plugin.
func (s Script) copy(moment string) error {
	if s.CopyTo == "" {
		return nil
	}
	earlier, err := os.ReadDir(s.CopyTo)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	step := fmt.Sprintf("%02d %s %s", len(earlier), moment, filepath.Base(os.Args[0]))
	for _, dir := range s.Copy {
		if err := CopyDir(dir, filepath.Join(s.CopyTo, step, filepath.Base(dir))); err != nil {
			return err
		}
	}
	return nil
}

// CopyDir copies the content of the disk: a mounted namespace becomes an empty
// file.
func CopyDir(from, to string) error {
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
