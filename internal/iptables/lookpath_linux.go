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
	"time"
)

// lookups remembers where tools are. To find a tool takes a system call for each
// directory of PATH before its own, and the variant fifteen more, and each attachment
// asks several times.
var lookups struct {
	mu    sync.Mutex
	found map[string]found // by tool and PATH
}

// fresh is how long a found tool is remembered. A tool that is installed in an earlier
// directory of PATH is noticed so much later. That the path leads to another file, as
// after update-alternatives, or to none is noticed at once.
const fresh = time.Second

// mostLookups limits the memory of a program that changes its PATH again and again.
const mostLookups = 64

type found struct {
	path string
	file fs.FileInfo // to which the path leads
	real string      // the path without symbolic links, if it was looked for
	at   time.Time
}

// LookPath finds a tool, also in the directories of administrators that the PATH
// of other users lacks. It looks in earlier directories of PATH once a second.
func LookPath(tool string) (string, error) {
	f, err := lookPath(tool)
	return f.path, err
}

func lookPath(tool string) (found, error) {
	key := tool + "\x00" + os.Getenv("PATH")
	lookups.mu.Lock()
	f, ok := lookups.found[key]
	lookups.mu.Unlock()
	if ok && time.Since(f.at) < fresh {
		if now, err := os.Stat(f.path); err == nil && os.SameFile(now, f.file) {
			return f, nil
		}
	}
	f = found{at: time.Now()}
	var err error
	if f.path, err = search(tool); err != nil {
		return found{}, err
	}
	if f.file, err = os.Stat(f.path); err == nil {
		remember(key, f)
	}
	return f, nil
}

func remember(key string, f found) {
	lookups.mu.Lock()
	defer lookups.mu.Unlock()
	if lookups.found == nil || len(lookups.found) >= mostLookups {
		lookups.found = make(map[string]found)
	}
	lookups.found[key] = f
}

func search(tool string) (string, error) {
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

// Detect finds the variant with the plain name, as executable plugins find it; see
// [LookPath].
func (x *Tool) Detect(ctx context.Context) error {
	f, err := lookPath(x.Family)
	if err != nil {
		return fmt.Errorf(`the backend "iptables" needs the program %s: %w`, x.Family, err)
	}
	// A symbolic link shows the variant without starting a process.
	if f.real == "" {
		if f.real, err = filepath.EvalSymlinks(f.path); err == nil {
			remember(x.Family+"\x00"+os.Getenv("PATH"), f)
		}
	}
	switch name := filepath.Base(f.real); {
	case strings.Contains(name, "nft"):
		return nil
	case strings.Contains(name, "legacy"):
		x.Legacy = true
		return nil
	}
	version, err := x.runTool(ctx, "", f.path, "--version")
	if err != nil {
		return err
	}
	x.Legacy = !strings.Contains(version, "(nf_tables)")
	return nil
}
