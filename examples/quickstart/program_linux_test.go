package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/refplugins"
)

// program is the built program in a directory that all users can read.
type program struct{ dir string }

func newProgram(t *testing.T) *program {
	t.Helper()
	// Not t.TempDir, which other users cannot enter. The directory also holds
	// copies of the required files of the checkout and the cache for the same
	// reason.
	dir, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := &program{dir: dir}
	if err := errors.Join(
		os.Chmod(dir, 0o755),
		os.CopyFS(p.path("plugins"), os.DirFS(os.Getenv(pluginsVariable))),
		os.CopyFS(p.path(shippedConfig), os.DirFS(filepath.Join("..", "..", shippedConfig))),
	); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", p.path("quickstart"), ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return p
}

const pluginsVariable = "QUICKSTART_TEST_PLUGINS"

// plugins runs outside the sandbox, where the plugins can be built.
func plugins() ([]string, error) {
	dir, err := refplugins.Dir(context.Background(), os.Stderr)
	return []string{pluginsVariable + "=" + dir}, err
}

// executables makes the program run the reference plugins.
func (p *program) executables(cmd *exec.Cmd) {
	cmd.Args = append(cmd.Args, "-plugins", p.path("plugins"))
}

func (p *program) path(name string) string { return filepath.Join(p.dir, name) }

func (p *program) copyNetwork(t *testing.T, name, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.path(shippedConfig), name))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, name), 0o644, string(text))
}

func write(t *testing.T, path string, mode os.FileMode, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

type outcome struct {
	code           int
	stdout, stderr string
}

// run runs the program to its end and fails unless the host is unchanged
// afterwards. change may modify the command. The program receives the signals
// after it has attached its first container.
func (p *program) run(t *testing.T, change func(*exec.Cmd), signals ...os.Signal) outcome {
	t.Helper()
	wantSameHost(t)
	cmd := exec.CommandContext(t.Context(), p.path("quickstart"))
	cmd.Dir = p.dir
	if change != nil {
		change(cmd)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stderr = &stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(io.TeeReader(pipe, &stdout))
	if len(signals) > 0 {
		// At the end of the output there is no line, and the printed text has
		// the reason.
		_, _ = lines.ReadString('\n')
	}
	for _, s := range signals {
		if err := cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// wantSameHost fails if the host's links, rules, namespaces, state or processes
// change during the test.
func wantSameHost(t *testing.T) {
	t.Helper()
	look := func() audit.Lines {
		lines, err := audit.Snapshot(context.Background(), audit.Options{
			StateDirs: []string{"/run", "/var/lib"}, NetNSDirs: []string{"/run/netns", "/var/run/netns"},
		})
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	before := look()
	t.Cleanup(func() {
		if added, gone := audit.Diff(before, look()); len(added)+len(gone) > 0 {
			t.Errorf("on the host, new:\n%s\ngone:\n%s", strings.Join(added, "\n"), strings.Join(gone, "\n"))
		}
	})
}

// asNobody makes a command run as an unprivileged user.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	const nobody = 65534
	home, err := os.MkdirTemp("", "home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	if err := os.Chown(home, nobody, nobody); errors.Is(err, unix.EINVAL) {
		t.Skip("no other user exists here: these tests are themselves run without privilege, and so is all they run")
	} else if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	// As on Debian, where a user's PATH has no system programs.
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME=", "PATH=/usr/bin:/bin")
}

// hideSystemPrograms hides the directories that the program searches beyond
// PATH, until the test ends.
func hideSystemPrograms(t *testing.T) {
	t.Helper()
	hidden := map[string]bool{}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, os.ErrNotExist) || hidden[real] {
			continue
		}
		hidden[real] = true
		if err == nil {
			err = unix.Mount("tmpfs", real, "tmpfs", 0, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(real, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
}
