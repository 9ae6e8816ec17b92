package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/expect"
)

// programVariable makes the test binary the program, which makes its own namespaces.
const programVariable = "QUICKSTART_PROGRAM"

func TestMain(m *testing.M) {
	unix.Umask(0o022) // the library refuses configurations that others may write
	if os.Getenv(programVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// run runs the program to its end. change may modify the command.
func run(t *testing.T, change func(*exec.Cmd), args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	if change != nil {
		change(cmd)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// readable returns a copy of the networks that all users can read.
func readable(t *testing.T) (dir string) {
	t.Helper()
	dir = expect.Value(os.MkdirTemp("", "quickstart"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	expect.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.CopyFS(dir+"/networks", os.DirFS("networks"))))
	return dir + "/networks"
}

// asNobody makes a command run as an unprivileged user.
func asNobody(cmd *exec.Cmd) {
	if os.Geteuid() != 0 {
		return // it is one already
	}
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func withoutTools(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "PATH=/nonexistent") }

// TestQuickstart proves all traffic and leaves nothing, for each user, and on a machine
// without iptables and nft.
func TestQuickstart(t *testing.T) {
	for _, typ := range []string{"bridge", "host-local", "portmap", "ptp"} {
		if builtin.New()(typ) == nil {
			t.Fatalf("%s is not built in", typ)
		}
	}
	networks := readable(t)
	for name, change := range map[string]func(*exec.Cmd){"as this user": nil, "as another user": asNobody, "without tools": withoutTools} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, code := run(t, change, "-config", networks)
			if code != 0 || stderr != "" || !strings.HasSuffix(stdout, "left of the containers: nothing\n") {
				t.Errorf("exit code %d\n%s%s", code, stderr, stdout)
			}
			if n := strings.Count(stdout, "✓"); n != 14 {
				t.Errorf("%d ways have traffic, want 14, in\n%s", n, stdout)
			}
			for _, want := range []string{
				"attached web to 3 networks", "bridge-net    10.88.0.2:80", "ptp-net       [fd00:89::2]:80",
				"10.88.0.1:8080", "[fd00:88::1]:8080", "detached client",
			} {
				if !strings.Contains(stdout, want) {
					t.Errorf("no %q in\n%s", want, stdout)
				}
			}
		})
	}
}

// TestMistakesAreSaid, and nothing is left.
func TestMistakesAreSaid(t *testing.T) {
	broken, unknown, isolated := t.TempDir(), t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		broken + "/10.conflist":  `{"plugins": [`,
		unknown + "/10.conflist": `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "nobodys"}]}`,
		isolated + "/10.conflist": `{"cniVersion": "1.0.0", "name": "isolated", "plugins": [{"type": "bridge", "isGateway": true,
			"portIsolation": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`,
	} {
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for dir, want := range map[string]string{
		broken:                           "unexpected end of JSON input",
		unknown:                          `failed to find plugin "nobodys"`,
		isolated:                         "client → web by isolated: dial tcp 10.88.0.2:80",
		filepath.Join(broken, "nowhere"): "networks of ",
	} {
		stdout, stderr, code := run(t, nil, "-config", dir)
		if code != 1 || !strings.Contains(stderr, "quickstart: ") || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, want %q in\n%s%s", code, want, stderr, stdout)
		}
		if strings.Contains(stderr, "did not leave") {
			t.Error(stderr)
		}
	}
}
