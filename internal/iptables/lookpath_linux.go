package iptables

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// LookPath finds a tool, also in the directories of administrators that the PATH
// of other users lacks.
func LookPath(tool string) (string, error) {
	path, err := exec.LookPath(tool)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// Detect finds the variant with the plain name, as executable plugins find it.
func (x *Tool) Detect(ctx context.Context) error {
	path, err := LookPath(x.Family)
	if err != nil {
		return fmt.Errorf(`the backend "iptables" needs the program %s: %w`, x.Family, err)
	}
	// A symbolic link shows the variant without starting a process.
	if real, err := links.eval(path); err == nil {
		switch name := filepath.Base(real); {
		case strings.Contains(name, "nft"):
			return nil
		case strings.Contains(name, "legacy"):
			x.Legacy = true
			return nil
		}
	}
	version, err := x.runTool(ctx, "", path, "--version")
	if err != nil {
		return err
	}
	x.Legacy = !strings.Contains(version, "(nf_tables)")
	return nil
}

// links remembers to which files the tools' symbolic links lead.
var links followed

// followed is links that were followed, which takes fifteen system calls where
// update-alternatives made them. Each attachment asks. One system call shows whether a
// link leads to the same file as before.
type followed struct {
	mu  sync.Mutex
	all map[string]target
}

type target struct {
	file fs.FileInfo
	path string
}

// mostFollowed limits the memory of a program that changes its PATH again and again.
const mostFollowed = 64

// eval is [filepath.EvalSymlinks].
func (l *followed) eval(path string) (string, error) {
	now, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	l.mu.Lock()
	to, ok := l.all[path]
	l.mu.Unlock()
	if ok && os.SameFile(now, to.file) && now.ModTime().Equal(to.file.ModTime()) {
		return to.path, nil
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	if there, err := os.Stat(real); err != nil || !os.SameFile(there, now) {
		return real, nil // the link was changed meanwhile
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil || len(l.all) >= mostFollowed {
		l.all = make(map[string]target)
	}
	l.all[path] = target{now, real}
	return real, nil
}
