//go:build !linux

package invoke

import (
	"os/exec"
	"syscall"
)

// awaitExit waits for the end of a process and reaps it. There is no portable
// way to leave it a zombie as on Linux. So between the end of a failed plugin
// and the killing of its group, another process might get its number, and lead a
// group, if the group was empty. That takes a full cycle of the process numbers
// within microseconds.
func awaitExit(cmd *exec.Cmd) (exit, error) {
	err := cmd.Wait()
	state := cmd.ProcessState
	if state == nil {
		return exit{}, err
	}
	e := exit{code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.signal = ws.Signal()
	}
	return e, nil
}

// reap does nothing: awaitExit has reaped the process.
func (p *process) reap() {}
