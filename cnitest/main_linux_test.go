package cnitest_test

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// mode changes TestMain in processes that the tests start.
const mode = "CNITEST_TEST_MODE"

func TestMain(m *testing.M) {
	switch os.Getenv(mode) {
	case "": // the tests of this package
		os.Exit(cnitest.Main(m, cnitest.BuildReferencePlugins()))
	case "main":
		os.Exit(cnitest.Main(m))
	case "skip":
		os.Exit(cnitest.Main(m, cnitest.SkipHosts()))
	default: // a package that has forgotten Main
		os.Exit(m.Run())
	}
}

// tested runs a test of this binary in another process, as an ordinary user, and returns
// its output and exit code.
func tested(t *testing.T, how, name string) (string, int) {
	t.Helper()
	const nobody = 65534
	dir := t.TempDir()
	expect.NoError(t, os.Chown(dir, nobody, nobody))
	for parent := dir; parent != "/tmp" && parent != "/"; parent = parent[:strings.LastIndexByte(parent, '/')] {
		expect.NoError(t, os.Chmod(parent, 0o755))
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^"+name+"$")
	cmd.Env = append(os.Environ(), mode+"="+how, "TMPDIR="+dir, "EMBEDCNI_SANDBOX_INSIDE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestMainServesOrdinaryUsers(t *testing.T) {
	for _, name := range []string{"TestHostHasBuiltInPlugins", "TestContractOfRuntime"} {
		out, code := tested(t, "main", name)
		if code != 0 || !strings.Contains(out, "--- PASS: "+name) {
			t.Errorf("exit code %d:\n%s", code, out)
		}
	}
}

func TestMainWhereNamespacesAreRefused(t *testing.T) {
	const limit = "/proc/sys/user/max_user_namespaces"
	was, err := os.ReadFile(limit)
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(limit, []byte("0"), 0))
	defer func() { expect.NoError(t, os.WriteFile(limit, was, 0)) }()

	const why, name = "the kernel refuses user namespaces to this user", "TestHostHasBuiltInPlugins"
	out, code := tested(t, "main", name)
	if code != 1 || !strings.Contains(out, why) || strings.Contains(out, name) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	out, code = tested(t, "skip", name)
	if code != 0 || !strings.Contains(out, "--- SKIP: "+name) || strings.Count(out, why) != 2 {
		t.Errorf("with SkipHosts: exit code %d:\n%s", code, out)
	}
	out, code = tested(t, "skip", "TestAttachmentsHaveTheResultsValues")
	if code != 0 || !strings.Contains(out, "--- PASS") {
		t.Errorf("a test without a host: exit code %d:\n%s", code, out)
	}
}

func TestHostNeedsMain(t *testing.T) {
	for _, name := range []string{"TestHostHasBuiltInPlugins", "TestContainerLivesUntilItIsRemoved"} {
		out, code := tested(t, "forgotten", name)
		if code != 1 || !strings.Contains(out, "let TestMain call cnitest.Main") {
			t.Errorf("%s: exit code %d:\n%s", name, code, out)
		}
	}
}
