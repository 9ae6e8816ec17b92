package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// programVariable makes the test binary the program.
const programVariable = "EMBEDCNI_OVERLAY_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(run(os.Args[1:]))
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// program returns the program as a command.
func program(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	return cmd
}

// follow starts the program, and calls do at a line that begins so. It returns the output and
// the exit code.
func follow(t *testing.T, cmd *exec.Cmd, line string, do func()) (stdout, stderr string, code int) {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	r := bufio.NewReader(expect.Value(cmd.StdoutPipe())(t))
	expect.NoError(t, cmd.Start())
	var out strings.Builder
	for {
		text, err := r.ReadString('\n')
		out.WriteString(text)
		if line != "" && strings.HasPrefix(text, line) {
			do()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
	}
	if err := cmd.Wait(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), strings.ReplaceAll(errs.String(), building, ""), cmd.ProcessState.ExitCode()
}

// machineState lists what the program must not change: mounts, interfaces, and the directories
// that its daemons use. It waits for the program's processes, which the kernel may still be ending.
func machineState(t *testing.T) string {
	t.Helper()
	for {
		_, err := syscall.Wait4(-1, nil, 0, nil) // this process adopts them
		if errors.Is(err, syscall.ECHILD) {
			break
		}
		expect.That(t, err == nil || errors.Is(err, syscall.EINTR), "wait for orphans: %v", err)
	}
	var lines []string
	for _, file := range []string{"/proc/self/mountinfo", "/proc/net/dev_mcast"} {
		lines = append(lines, string(expect.Value(os.ReadFile(file))(t)))
	}
	for _, pattern := range []string{
		"/sys/class/net/*", "/mnt/*", "/run/flannel*", "/run/netns/*", "/run/*.notify", "/run/xtables.lock",
		"/var/lib/cni*", "/var/lib/etcd/*", "/etc/cni*", "/proc/sys/kernel/random/boot_id",
	} {
		lines = append(lines, expect.Value(filepath.Glob(pattern))(t)...)
	}
	return strings.Join(lines, "\n")
}

// wantStory is the output of a run, without what differs.
const wantStory = `etcd VERSION serves at http://192.168.50.1:2379, flanneld is VERSION
before flanneld runs, an ADD fails: there is no /run/flannel/subnet.env
    host-1 at 192.168.50.2 and fd00:50::2 has SUBNET and SUBNET6, MTU 1450
    host-2 at 192.168.50.3 and fd00:50::3 has SUBNET and SUBNET6, MTU 1450
    host-3 at 192.168.50.4 and fd00:50::4 has SUBNET and SUBNET6, MTU 1450
each host attaches a web container, with host port 8080, and a job
    web-1 has ADDRESS and ADDRESS6
    job-1 has ADDRESS and ADDRESS6
    web-2 has ADDRESS and ADDRESS6
    job-2 has ADDRESS and ADDRESS6
    web-3 has ADDRESS and ADDRESS6
    job-3 has ADDRESS and ADDRESS6
VXLAN: containers on different hosts reach each other
    job-1 pings web-2 at ADDRESS and ADDRESS6 in TIME
    job-1 pings web-3 at ADDRESS and ADDRESS6 in TIME
    job-2 pings web-1 at ADDRESS and ADDRESS6 in TIME
    job-2 pings web-3 at ADDRESS and ADDRESS6 in TIME
    job-3 pings web-1 at ADDRESS and ADDRESS6 in TIME
    job-3 pings web-2 at ADDRESS and ADDRESS6 in TIME
    6 ways, both families: all answer, and all go through the tunnels
a host port is reached from another host, and from its containers
    host-2 and job-2 ask port 8080 of host-1: web-1 answers
    host-3 and job-3 ask port 8080 of host-2: web-2 answers
    host-1 and job-1 ask port 8080 of host-3: web-3 answers
host-gw: flannel's backend changes, and flanneld starts again on each host
    each host keeps its lease, and N pings meanwhile lose N
    6 ways, both families: all answer, and none goes through the tunnels
and back to VXLAN
    each host keeps its lease, and N pings meanwhile lose N
    6 ways, both families: all answer, and all go through the tunnels
host-2 loses its power
    job-1 pings web-2: no answer
    power is back: Recover removes job-2 and web-2, and nothing of them is left
    flanneld has the same lease, the containers are attached again, and job-1 pings web-2: traffic is back after TIME
    N pings between other containers meanwhile lose N
etcd stops, starts again, and forgets its history
    without etcd, late-1 is attached from the present /run/flannel/subnet.env, and job-3 pings it in TIME
    etcd serves again after TIME, compacted at its revision N
    N pings between other containers meanwhile lose N
the lease of host-3 is revoked, and its subnet kept for another host
    flanneld ends after TIME: "Lease has been revoked. Shutting down daemon."; started again, it has SUBNET and SUBNET6
    job-1 pings web-3: no answer
    job-3: broken
      network "cbr0", interface eth0, plugin flannel: lease ADDRESS is SUBNET and SUBNET6, not SUBNET
      network "cbr0", interface eth0, plugin flannel: lease ADDRESS6 is SUBNET and SUBNET6, not SUBNET6
    job-3 moves to ADDRESS and ADDRESS6
    web-3: broken
      network "cbr0", interface eth0, plugin flannel: lease ADDRESS is SUBNET and SUBNET6, not SUBNET
      network "cbr0", interface eth0, plugin flannel: lease ADDRESS6 is SUBNET and SUBNET6, not SUBNET6
    web-3 moves to ADDRESS and ADDRESS6
    traffic is back TIME after reconcile.Run was called
    host-2 and job-2 ask port 8080 of host-1: web-1 answers
    host-3 and job-3 ask port 8080 of host-2: web-2 answers
    host-1 and job-1 ask port 8080 of host-3: web-3 answers
the cable of host-2 is cut, and mended
    job-1 pings web-2: no answer
    job-2 pings web-2 on the same host in TIME
    traffic is back TIME after the cable was mended
    N pings between other containers meanwhile lose N
` + "left of the containers on 3 hosts: nothing\n"

// plain replaces what differs between runs.
func plain(output string) string {
	for _, r := range []struct{ what, by string }{
		{`etcd \S+ serves`, "etcd VERSION serves"}, {`flanneld is \S+`, "flanneld is VERSION"},
		{`10\.244\.\d+\.0/24`, "SUBNET"}, {`fd00:10:244:[0-9a-f:]+/64`, "SUBNET6"},
		{`10\.244\.\d+\.\d+`, "ADDRESS"}, {`fd00:10:244:[0-9a-f:]+`, "ADDRESS6"},
		{`\b(\d+m)?[\d.]+(ns|µs|ms|s)\b`, "TIME"},
		{`\d+( pings .*meanwhile lose) \d+`, "N$1 N"}, {`revision \d+`, "revision N"},
	} {
		output = regexp.MustCompile(r.what).ReplaceAllString(output, r.by)
	}
	return output
}

// TestStory runs the program from start to end.
func TestStory(t *testing.T) {
	before := machineState(t)
	stdout, stderr, code := follow(t, program(), "", nil)
	t.Logf("\n%s", stdout)
	if got := plain(stdout); got != wantStory || stderr != "" || code != 0 {
		t.Errorf("exit code %d, stderr %q, got\n%s\nwant\n%s", code, stderr, got, wantStory)
	}
	expect.Same(t, "machine", machineState(t), before)
}

// TestCrowd attaches a small crowd, unevenly.
func TestCrowd(t *testing.T) {
	before := machineState(t)
	stdout, stderr, code := follow(t, program("-hosts", "4", "-containers", "41"), "", nil)
	t.Logf("\n%s", stdout)
	if !strings.HasSuffix(stdout, fmt.Sprintf(nothingLeft, 4)) || stderr != "" || code != 0 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	expect.Same(t, "machine", machineState(t), before)
}

// TestInterrupted: everything is undone, whatever was under way.
func TestInterrupted(t *testing.T) {
	before := machineState(t)
	for line, sig := range map[string]syscall.Signal{
		"etcd ": syscall.SIGTERM, "each host attaches ": syscall.SIGINT, "host-2 loses ": syscall.SIGTERM,
	} {
		cmd := program()
		stdout, stderr, code := follow(t, cmd, line, func() { expect.NoError(t, cmd.Process.Signal(sig)) })
		if code != 1 || !strings.HasSuffix(stdout, fmt.Sprintf(nothingLeft, 3)) || !strings.Contains(stderr, "context canceled") {
			t.Errorf("%v at %q: exit code %d, stderr %q, stdout\n%s", sig, line, code, stderr, stdout)
		}
		expect.Same(t, "machine", machineState(t), before)
	}
}

// TestKilled: the kernel ends everything in the namespaces.
func TestKilled(t *testing.T) {
	before := machineState(t)
	cmd := program()
	stdout, _, _ := follow(t, cmd, "VXLAN", func() { expect.NoError(t, cmd.Process.Kill()) })
	expect.That(t, !strings.Contains(stdout, "left of"), "it was not killed:\n%s", stdout)
	expect.Same(t, "machine", machineState(t), before)
}

func TestWhatIsMissingIsSaid(t *testing.T) {
	for want, change := range map[string]func(*exec.Cmd){
		"overlay: hosts that are namespaces need root: run it as root\n": func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		},
		"overlay: there is no etcd, nft, iptables, ip6tables, gcc in PATH: " + install + "\n": func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, "PATH=/nonexistent", "CC=")
		},
	} {
		cmd := program()
		change(cmd)
		stdout, stderr, code := follow(t, cmd, "", nil)
		if stdout != "" || stderr != want || code != 2 {
			t.Errorf("exit code %d, stdout %q, stderr %q, want %q", code, stdout, stderr, want)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-h"}, 0, "Usage: overlay "},
		{[]string{"-hosts", "2"}, 2, "overlay: -hosts 2: from 3 to 100\nUsage: overlay "},
		{[]string{"-containers", "751"}, 2, "overlay: -containers 751: from 3 to 750 on 3 hosts\nUsage: overlay "},
		{[]string{"-at-once", "0"}, 2, "overlay: -at-once 0: at least 1\nUsage: overlay "},
		{[]string{"now"}, 2, "overlay: there is no argument \"now\"\nUsage: overlay "},
	} {
		stdout, stderr, code := follow(t, program(c.args...), "", nil)
		if stdout != "" || !strings.HasPrefix(stderr, c.want) || code != c.code {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q, want %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestParseLease(t *testing.T) {
	got, err := parseLease([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.83.1/24\n" +
		"FLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:5::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
	expect.NoError(t, err)
	expect.Same(t, "lease", got, Lease{netip.MustParsePrefix("10.244.83.0/24"), netip.MustParsePrefix("fd00:10:244:5::/64"), 1450})
	_, err = parseLease([]byte("FLANNEL_SUBNET=10.244.83.1/24\n"))
	expect.Fails(t, "a file without IPv6", err)
}
