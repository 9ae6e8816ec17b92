package cni_test

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestHelpExplainsEachTarget, and no other.
func TestHelpExplainsEachTarget(t *testing.T) {
	text := string(expect.Value(os.ReadFile("Makefile"))(t))
	var targets, explained []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+):(?: |$)`).FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1])
	}
	help := expect.Value(exec.Command("make", "help").Output())(t)
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+)  +\S`).FindAllStringSubmatch(string(help), -1) {
		explained = append(explained, m[1])
	}
	slices.Sort(targets)
	slices.Sort(explained)
	expect.That(t, len(targets) > 10, "the Makefile has targets %v", targets)
	expect.Same(t, "explained", explained, targets)
}

// A debian has all that .ci/deps finds: directories of the system, and tools that log their calls.
type debian struct{ root, bin, log string }

// policyPath is where Debian's maintainer scripts ask whether a service may start.
const policyPath = "/usr/sbin/policy-rc.d"

// Tools of a debian. apt-get notes whether a service could start meanwhile.
const (
	aptGet = `echo "apt-get $*" >>"$DEPS_LOG"
case $1 in install)
	code=0; "$DEPS_ROOT` + policyPath + `" firewalld.service start || code=$?
	echo "policy $code" >>"$DEPS_LOG" ;;
esac
`
	dpkg = `case $2 in
firewalld) echo /usr/bin/firewalld; echo /lib/systemd/system/firewalld.service ;;
containerd) echo /lib/systemd/system/containerd.service; echo /lib/systemd/system/containerd@.service ;;
*) exit 1 ;;
esac
`
	systemctl = `echo "systemctl $*" >>"$DEPS_LOG"
`
)

func newDebian(t *testing.T, withSystemd bool) debian {
	t.Helper()
	d := debian{root: t.TempDir(), bin: t.TempDir(), log: filepath.Join(t.TempDir(), "log")}
	expect.NoError(t, os.MkdirAll(d.root+"/usr/sbin", 0o755))
	for name, script := range map[string]string{"apt-get": aptGet, "dpkg": dpkg, "id": "echo 0\n", "present": ""} {
		d.tool(t, name, script)
	}
	if withSystemd {
		d.tool(t, "systemctl", systemctl)
	}
	for _, name := range []string{"chmod", "rm", "sed", "sort"} {
		expect.NoError(t, os.Symlink(expect.Value(exec.LookPath(name))(t), filepath.Join(d.bin, name)))
	}
	return d
}

func (d debian) tool(t *testing.T, name, script string) {
	t.Helper()
	expect.NoError(t, os.WriteFile(filepath.Join(d.bin, name), []byte("#!/bin/sh\n"+script), 0o755))
}

// deps runs .ci/deps. It returns the output, the exit code, and the log of the tools.
func (d debian) deps(t *testing.T, needs ...string) (out string, code int, log []string) {
	t.Helper()
	cmd := exec.Command(".ci/deps", needs...)
	cmd.Env = append(os.Environ(), "PATH="+d.bin, "DEPS_ROOT="+d.root, "DEPS_LOG="+d.log)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	called, err := os.ReadFile(d.log)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode(), slices.Collect(strings.Lines(string(called)))
}

// Needs of which the first is there.
var needs = []string{"present:present", "no-such-firewalld:firewalld", "no-such-containerd:containerd", "no-such-nft:nftables", "no-such-nft6:nftables"}

const said = "the tests need these packages; installing them now, without starting or enabling a service: firewalld containerd nftables\n"

var wantCalls = []string{
	"apt-get update -qq\n",
	"apt-get install -y -qq --no-install-recommends firewalld containerd nftables libc6-dev\n",
	"policy 101\n",
}

func TestDepsInstallPackagesWithoutTheirServices(t *testing.T) {
	for name, tt := range map[string]struct {
		systemd bool
		want    []string
	}{
		"with systemd":    {true, append(slices.Clone(wantCalls), "systemctl disable --quiet containerd.service firewalld.service\n")},
		"without systemd": {false, wantCalls},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDebian(t, tt.systemd)
			out, code, log := d.deps(t, needs...)
			expect.Same(t, "output", out, said)
			expect.Same(t, "exit code", code, 0)
			expect.Same(t, "calls", log, tt.want)
			expect.That(t, !expect.Exists(t, d.root+policyPath), "policy-rc.d stays")
		})
	}
}

func TestDepsAreThere(t *testing.T) {
	out, code, log := newDebian(t, true).deps(t, "present:present")
	expect.Same(t, "output", out, "")
	expect.Same(t, "exit code", code, 0)
	expect.Empty(t, "calls", log)
}

// TestDepsUndoAfterFailures: neither the policy nor an enabled service stays.
func TestDepsUndoAfterFailures(t *testing.T) {
	d := newDebian(t, true)
	d.tool(t, "apt-get", aptGet+"[ $1 = update ]\n")
	_, code, log := d.deps(t, needs...)
	expect.Same(t, "exit code", code, 1)
	expect.Same(t, "calls", log, append(slices.Clone(wantCalls), "systemctl disable --quiet containerd.service firewalld.service\n"))
	expect.That(t, !expect.Exists(t, d.root+policyPath), "policy-rc.d stays")

	// What this process catches, a child does not ignore: no shell can trap a signal that was
	// ignored when it started, as SIGHUP is below nohup.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(caught)
	for name, want := range map[string]int{"INT": 130, "TERM": 143, "HUP": 143} {
		d := newDebian(t, false)
		d.tool(t, "apt-get", "kill -"+name+" $PPID\n")
		_, code, _ := d.deps(t, needs...)
		expect.Same(t, name+": exit code", code, want)
		expect.That(t, !expect.Exists(t, d.root+policyPath), "%s: policy-rc.d stays", name)
	}
}

// TestDepsKeepAnAdministratorsPolicy: it is not replaced. If it lets services start, nothing is
// installed.
func TestDepsKeepAnAdministratorsPolicy(t *testing.T) {
	for _, tt := range []struct {
		policy string
		code   int
		want   []string
	}{
		{"#!/bin/sh\nexit 101\n", 0, wantCalls},
		{"#!/bin/sh\nexit 0\n", 1, nil},
	} {
		d := newDebian(t, false)
		expect.NoError(t, os.WriteFile(d.root+policyPath, []byte(tt.policy), 0o755))
		_, code, log := d.deps(t, needs...)
		expect.Same(t, "exit code", code, tt.code)
		expect.Same(t, "calls", log, tt.want)
		expect.Same(t, "policy", string(expect.Value(os.ReadFile(d.root+policyPath))(t)), tt.policy)
	}
}

// TestDepsNameThePackages where they cannot be installed.
func TestDepsNameThePackages(t *testing.T) {
	const want = "the tests need these packages, please install them: firewalld containerd nftables\n"
	d := newDebian(t, true)
	d.tool(t, "id", "echo 1000\n")
	out, code, log := d.deps(t, needs...)
	expect.Same(t, "output", out, want)
	expect.Same(t, "exit code", code, 1)
	expect.Empty(t, "calls", log)
}
