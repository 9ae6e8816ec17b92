package audit

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes lists the descendants of this process. If it is a child subreaper, as
// in a sandbox, the list includes orphans.
//
// Zombies are omitted: a subreaper cannot distinguish an orphan that ended from
// a child that a goroutine is about to wait for. A child that nobody waits for
// shows as an open pidfd.
func Processes() ([]string, error) {
	// A kernel without CONFIG_PROC_CHILDREN must not look like a process without children.
	if _, err := os.Stat("/proc/thread-self/children"); err != nil {
		return nil, err
	}
	return descendants(strconv.Itoa(os.Getpid()))
}

func descendants(pid string) (lines []string, err error) {
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*/children")
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err = unlessGone(err); err != nil {
			return nil, err
		}
		for _, child := range strings.Fields(string(children)) {
			name, nerr := os.ReadFile("/proc/" + child + "/comm")
			command, cerr := os.ReadFile("/proc/" + child + "/cmdline")
			below, err := descendants(child)
			if err = unlessGone(errors.Join(nerr, cerr, err)); err != nil {
				return nil, err
			}
			if len(command) > 0 { // a zombie has none
				words := strings.TrimSpace(string(bytes.ReplaceAll(command, []byte{0}, []byte(" "))))
				lines = append(lines, line("process", strings.TrimSpace(string(name))+":", words))
			}
			lines = append(lines, below...)
		}
	}
	return lines, nil
}
