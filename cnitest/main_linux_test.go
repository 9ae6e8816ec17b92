package cnitest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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

// tested runs a test of this binary in another process, as an ordinary user, which must
// end with that exit code, and returns its output.
func tested(t *testing.T, how, name string, code int) string {
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
	expect.Same(t, fmt.Sprintf("exit code of %s, %s", how, out), cmd.ProcessState.ExitCode(), code)
	return string(out)
}

func TestMainServesOrdinaryUsers(t *testing.T) {
	for _, name := range []string{"TestHostHasBuiltInPlugins", "TestFakeAttachesAndForgets"} {
		expect.Contains(t, "the test", tested(t, "main", name, 0), "--- PASS: "+name)
	}
}

func TestMainWhereNamespacesAreRefused(t *testing.T) {
	const limit = "/proc/sys/user/max_user_namespaces"
	was := expect.Value(os.ReadFile(limit))(t)
	expect.NoError(t, os.WriteFile(limit, []byte("0"), 0))
	defer func() { expect.NoError(t, os.WriteFile(limit, was, 0)) }()

	const why, name = "the kernel refuses user namespaces to this user", "TestHostHasBuiltInPlugins"
	out := tested(t, "main", name, 1)
	expect.Contains(t, "the test", out, why)
	expect.Lacks(t, "the test", out, name)
	out = tested(t, "skip", name, 0)
	expect.Contains(t, "with SkipHosts", out, "--- SKIP: "+name)
	expect.Same(t, "reasons", strings.Count(out, why), 2)
	expect.Contains(t, "a test without a host", tested(t, "skip", "TestFakeRefusesWhatARuntimeRefuses", 0), "--- PASS")
}

func TestHostNeedsMain(t *testing.T) {
	for _, name := range []string{"TestHostHasBuiltInPlugins", "TestContainerLivesUntilItIsRemoved"} {
		expect.Contains(t, name, tested(t, "forgotten", name, 1), "let TestMain call cnitest.Main")
	}
}

// ownVariable makes TestAuditInNamespacesOfAUser audit the namespaces that it runs in.
const ownVariable = "CNITEST_TEST_OWN"

// TestAuditNeedsNoPrivilege: a user's own namespaces are enough, whether the user namespace
// was mapped before the network namespace was made or after. Root's directories are named,
// where the user cannot look into them.
func TestAuditNeedsNoPrivilege(t *testing.T) {
	expect.NoError(t, os.MkdirAll("/var/lib/cni/embedcni", 0o755), os.Mkdir("/var/lib/cni/embedcni/attachments", 0o700))
	defer func() { expect.NoError(t, os.RemoveAll("/var/lib/cni")) }()
	expect.NoError(t, os.WriteFile("/var/lib/cni/secret", nil, 0o600), os.MkdirAll("/run/netns", 0o700))
	defer func() { expect.NoError(t, os.Remove("/run/netns")) }()
	out := tested(t, "own", "TestAuditInNamespacesOfAUser", 0)
	expect.Same(t, "passed of "+out, strings.Count(out, "--- PASS: TestAuditInNamespacesOfAUser/"), 2)
}

// TestAuditInNamespacesOfAUser is a part of TestAuditNeedsNoPrivilege. By itself it has
// nothing to do.
func TestAuditInNamespacesOfAUser(t *testing.T) {
	if os.Getenv(mode) != "own" {
		return
	}
	if os.Getenv(ownVariable) != "" {
		auditOwn(t)
		return
	}
	for name, flags := range map[string]struct{ clone, unshare uintptr }{
		"mapped first": {syscall.CLONE_NEWUSER, syscall.CLONE_NEWNET},
		"mapped later": {syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "-test.v", "-test.run=^TestAuditInNamespacesOfAUser$")
			cmd.Env = append(os.Environ(), ownVariable+"=1")
			root := func(id int) []syscall.SysProcIDMap {
				return []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags: flags.clone, Unshareflags: flags.unshare, UidMappings: root(os.Getuid()), GidMappings: root(os.Getgid()),
			}
			out, err := cmd.CombinedOutput()
			expect.Contains(t, "the test", string(out), "--- PASS")
			expect.NoError(t, err)
		})
	}
}

func auditOwn(t *testing.T) {
	audit := func() []string {
		return expect.Value(cnitest.Audit(t.Context(), cnitest.Options{}))(t)
	}
	before := audit()
	expect.Same(t, "of root", slices.DeleteFunc(slices.Clone(before), func(line string) bool { return !strings.HasPrefix(line, "unreadable ") }),
		[]string{"unreadable /run/netns", "unreadable /var/lib/cni/embedcni/attachments", "unreadable /var/lib/cni/secret"})
	expect.NoError(t, addLink("left0"))
	lock := filepath.Join(t.TempDir(), "lock")
	for _, tool := range []string{"iptables-legacy", "ip6tables-legacy", "iptables-nft"} {
		cmd := exec.Command(tool, "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT")
		cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+lock)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", tool, err, out)
		}
	}
	expect.Contains(t, "the difference", cnitest.Diff(before, audit()), "+ link left0 ", "+ iptables-legacy nat -A OUTPUT -j ACCEPT",
		"+ ip6tables-legacy nat -A OUTPUT -j ACCEPT", "+ iptables-nft nat -A OUTPUT -j ACCEPT")
}
