package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is one row of the process table.
type process struct {
	pid, parent int
	comm        string
	state       string
}

// listProcesses lists the descendants of this process. If it is a child
// subreaper, as in a sandbox, the list includes orphans.
//
// Zombies are omitted: a subreaper cannot distinguish an orphan that ended from
// a child that a goroutine is about to wait for. A child that nobody waits for
// shows as an open pidfd.
func listProcesses() ([]string, error) {
	all, err := loadProcesses()
	if err != nil {
		return nil, err
	}
	ours := map[int]bool{os.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if ours[p.parent] && !ours[p.pid] {
				ours[p.pid], grown = true, true
			}
		}
	}
	var lines []string
	for _, p := range all {
		if !ours[p.pid] || p.pid == os.Getpid() || p.state == "Z" || p.state == "X" {
			continue
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err != nil {
			if err = unlessGone(err); err != nil {
				return nil, err
			}
			continue
		}
		lines = append(lines, line("process", p.comm+":", commandLine(cmdline)))
	}
	return lines, nil
}

func loadProcesses() ([]process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			if err = unlessGone(err); err != nil {
				return nil, err
			}
			continue
		}
		p, err := parseStat(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// parseStat reads the beginning of a /proc/PID/stat. The name may hold spaces
// and parentheses:
//
//	42 (a (b) c) S 1 42 42 0 -1 ...
func parseStat(text string) (process, error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return process{}, fmt.Errorf("no name in %q", text)
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 2 {
		return process{}, fmt.Errorf("no parent in %q", text)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	if err != nil {
		return process{}, err
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, err
	}
	return process{pid: pid, parent: parent, comm: text[open+1 : end], state: fields[0]}, nil
}
