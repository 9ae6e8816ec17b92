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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// TestMain makes a host for the program that the tests may look into and break:
// a sandbox, in which the program makes its own.
func TestMain(m *testing.M) {
	// What others may write, the library refuses to run.
	unix.Umask(0o022)
	os.Exit(sandbox.Main(m, sandbox.Before(plugins)))
}

func TestQuickstart(t *testing.T) {
	p := newProgram(t)

	t.Run("as root", func(t *testing.T) {
		checkRun(t, p.run(t, nil))
	})
	t.Run("as another user", func(t *testing.T) {
		checkRun(t, p.run(t, func(cmd *exec.Cmd) { asNobody(t, cmd) }))
	})
	t.Run("with the networks of a directory", func(t *testing.T) {
		dir := t.TempDir()
		p.copyNetwork(t, "20-ptp.conflist", dir)
		got := p.run(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-v", "-config", dir) })
		for _, want := range []string{"network=ptp-net plugin=ptp container=web interface=eth0", "client → host ptp-net udp IPv6", "dir /run/quickstart/embedcni/networks/"} {
			if !strings.Contains(plain(got.stdout+got.stderr), want) {
				t.Errorf("no %q in\n%s%s", want, got.stderr, got.stdout)
			}
		}
		if got.code != 0 {
			t.Errorf("exit code %d", got.code)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		got := p.run(t, nil, unix.SIGINT)
		if got.code != 1 || got.stderr != "quickstart: interrupted\n" ||
			!strings.HasSuffix(got.stdout, "left of the containers: nothing\n") {
			t.Errorf("exit code %d\n%s%s", got.code, got.stderr, got.stdout)
		}
	})
}

func TestErrorsSayWhatToDo(t *testing.T) {
	p := newProgram(t)
	broken := t.TempDir()
	p.copyNetwork(t, "10-bridge.conflist", broken)
	if err := os.WriteFile(filepath.Join(broken, "20-broken.conflist"), []byte(`{"plugins": [`), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()

	tests := map[string]struct {
		change func(t *testing.T, cmd *exec.Cmd)
		want   []string
	}{
		"broken conflist": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-config", broken) },
			[]string{broken + "/20-broken.conflist: ", "unexpected end of JSON input", "correct it, or move it out of the directory"},
		},
		"no such directory": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-config", broken+"/none") },
			[]string{"-config", broken + "/none: no such file or directory"},
		},
		"not in a checkout": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Dir = empty },
			[]string{"no testdata/quickstart in " + empty, "run it in a checkout", "-config"},
		},
		"no plugins": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "CNI_PATH="+empty) },
			[]string{"no plugin bridge, firewall, host-local, loopback, portmap, ptp in " + empty, "unset CNI_PATH"},
		},
		"no plugins and no Go": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "CNI_PATH=", "PATH="+empty) },
			[]string{"install Go, or set CNI_PATH"},
		},
		"no iptables": {
			func(t *testing.T, cmd *exec.Cmd) {
				cmd.Env = append(cmd.Env, "PATH="+empty)
				hideSystemPrograms(t)
			},
			[]string{"iptables is not installed", "apt-get install iptables"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := p.run(t, func(cmd *exec.Cmd) { tt.change(t, cmd) })
			if got.code != 1 || got.stdout != "" || !strings.HasPrefix(got.stderr, "quickstart: ") {
				t.Errorf("exit code %d\n%s%s", got.code, got.stderr, got.stdout)
			}
			for _, want := range tt.want {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("no %q in %s", want, got.stderr)
				}
			}
		})
	}
}

// wantRun is what the program prints, but for what differs from run to run.
const wantRun = `attached web to 3 networks in N ms
attached client to 3 networks in N ms

CONTAINER NETWORK INTERFACE MAC ADDRESS GATEWAY TOOK
web cni-loopback lo MAC 127.0.0.1/8 N ms
::1/128
bridge-net eth0 MAC 10.88.0.2/24 10.88.0.1 N ms
fd00:88::2/64 fd00:88::1
ptp-net eth1 MAC 10.89.0.2/24 10.89.0.1 N ms
fd00:89::2/64 fd00:89::1
client cni-loopback lo MAC 127.0.0.1/8 N ms
::1/128
bridge-net eth0 MAC 10.88.0.3/24 10.88.0.1 N ms
fd00:88::3/64 fd00:88::1
ptp-net eth1 MAC 10.89.0.3/24 10.89.0.1 N ms
fd00:89::3/64 fd00:89::1

✓ client → web bridge-net tcp IPv4 10.88.0.2:80 N ms
✓ client → web bridge-net tcp IPv6 [fd00:88::2]:80 N ms
✓ client → web bridge-net udp IPv4 10.88.0.2:80 N ms
✓ client → web bridge-net udp IPv6 [fd00:88::2]:80 N ms
✓ client → host bridge-net tcp IPv4 10.88.0.1:80 N ms
✓ client → host bridge-net tcp IPv6 [fd00:88::1]:80 N ms
✓ client → host bridge-net udp IPv4 10.88.0.1:80 N ms
✓ client → host bridge-net udp IPv6 [fd00:88::1]:80 N ms
✓ host port → web bridge-net tcp IPv4 10.88.0.1:8080 N ms
✓ host port → web bridge-net tcp IPv6 [fd00:88::1]:8080 N ms
✓ host port → web bridge-net udp IPv4 10.88.0.1:8080 N ms
✓ host port → web bridge-net udp IPv6 [fd00:88::1]:8080 N ms
✓ client → web ptp-net tcp IPv4 10.89.0.2:80 N ms
✓ client → web ptp-net tcp IPv6 [fd00:89::2]:80 N ms
✓ client → web ptp-net udp IPv4 10.89.0.2:80 N ms
✓ client → web ptp-net udp IPv6 [fd00:89::2]:80 N ms
✓ client → host ptp-net tcp IPv4 10.89.0.1:80 N ms
✓ client → host ptp-net tcp IPv6 [fd00:89::1]:80 N ms
✓ client → host ptp-net udp IPv4 10.89.0.1:80 N ms
✓ client → host ptp-net udp IPv6 [fd00:89::1]:80 N ms

detached web in N ms
detached client in N ms

kept for the next container (-v lists it):
2 addr, 7 dir, 10 file, … 1 link, 2 route
left of the containers: nothing
`

func checkRun(t *testing.T, got outcome) {
	t.Helper()
	if got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
	for line := range strings.Lines(got.stdout) {
		if n := utf8.RuneCountInString(line) - 1; n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	gotLines, wantLines := strings.Split(plain(got.stdout), "\n"), strings.Split(wantRun, "\n")
	for i := range max(len(gotLines), len(wantLines)) {
		if at(gotLines, i) != at(wantLines, i) {
			t.Fatalf("line %d: %q\nwant: %q\nall:\n%s", i+1, at(gotLines, i), at(wantLines, i), got.stdout)
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(nothing)"
}

// plain takes from the output what differs: the width of columns, times, MAC
// addresses, and by which tool rules are seen.
func plain(output string) string {
	for _, r := range []struct{ expr, with string }{
		{`(?m)^ +| +$`, ""},
		{` +`, " "},
		{`[\d.]+ ms`, "N ms"},
		{`([0-9a-f]{2}:){5}[0-9a-f]{2}`, "MAC"},
		{`\d+ ip6?tables\S+ .*\d+ ip6?tables\S+`, "…"},
	} {
		output = regexp.MustCompile(r.expr).ReplaceAllString(output, r.with)
	}
	return output
}

// program is the program, built, in a directory that is readable by all users.
type program struct{ dir string }

func newProgram(t *testing.T) *program {
	t.Helper()
	// Not t.TempDir, which other users cannot enter. For the same reason
	// there is a copy of all that is needed from the checkout and the cache.
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

// plugins is called outside, where the plugins can be built.
func plugins() ([]string, error) {
	dir, err := refplugins.Dir(context.Background(), os.Stderr)
	return []string{pluginsVariable + "=" + dir}, err
}

func (p *program) path(name string) string { return filepath.Join(p.dir, name) }

func (p *program) copyNetwork(t *testing.T, name, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.path(shippedConfig), name))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

type outcome struct {
	code           int
	stdout, stderr string
}

// run runs the program to its end and fails unless the host is as it was then.
// change may change how it is started. Signals are sent when the program has
// attached its first container.
func (p *program) run(t *testing.T, change func(*exec.Cmd), signals ...os.Signal) outcome {
	t.Helper()
	wantSameHost(t)
	cmd := exec.CommandContext(t.Context(), p.path("quickstart"))
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "CNI_PATH="+p.path("plugins"), "EMBEDCNI_TEST_PLUGINS=")
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
		// At the end there is no line, and what was printed says why.
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

// wantSameHost fails if the host is not at the end of the test what it is now:
// links, rules, namespaces, state, processes.
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

// asNobody starts a command as a user without any privilege.
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
	cmd.Env = append(cmd.Env, "HOME="+home, "XDG_CACHE_HOME=", "PATH=/usr/bin:/bin")
}

// hideSystemPrograms hides, until the end of the test, the directories in which
// the program looks beyond PATH.
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
