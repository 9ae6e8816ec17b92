package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/sandbox"
)

// TestMain makes a host that the tests may inspect and break: a sandbox, in
// which the program makes its own.
func TestMain(m *testing.M) {
	// The library refuses to run plugins that others may write.
	unix.Umask(0o022)
	os.Exit(sandbox.Main(m, sandbox.Before(plugins)))
}

func TestQuickstart(t *testing.T) {
	p := newProgram(t)

	t.Run("as root", func(t *testing.T) {
		checkRun(t, p.run(t, p.executables), wantRun)
	})
	t.Run("as another user", func(t *testing.T) {
		checkRun(t, p.run(t, func(cmd *exec.Cmd) { p.executables(cmd); asNobody(t, cmd) }), wantRun)
	})
	t.Run("with the networks of a directory", func(t *testing.T) {
		dir := t.TempDir()
		p.copyNetwork(t, "20-ptp.conflist", dir)
		got := p.run(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-v", "-config", dir, "-plugins", p.path("plugins")) })
		for _, want := range []string{"network=ptp-net plugin=ptp kind=executable container=web interface=eth0", "client → host ptp-net udp IPv6", "dir /run/quickstart/embedcni/networks/"} {
			if !strings.Contains(plain(got.stdout+got.stderr), want) {
				t.Errorf("no %q in\n%s%s", want, got.stderr, got.stdout)
			}
		}
		if got.code != 0 {
			t.Errorf("exit code %d", got.code)
		}
	})
	t.Run("without traffic", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/10.conflist", 0o644, `{"cniVersion": "1.0.0", "name": "isolated", "plugins": [
			{"type": "bridge", "isGateway": true, "portIsolation": true,
			 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`)
		got := p.run(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-config", dir, "-plugins", p.path("plugins")) })
		for _, want := range []string{
			"✗ client → web isolated tcp IPv4 10.88.0.2:80 dial tcp", "✗ client → web isolated udp",
			"✓ client → host isolated tcp", "✓ client → host isolated udp", "left of the containers: nothing\n",
		} {
			if !strings.Contains(plain(got.stdout), want) {
				t.Errorf("no %q in\n%s", want, got.stdout)
			}
		}
		if want := "quickstart: 2 of 4 ways have no traffic\n"; got.code != 1 || got.stderr != want {
			t.Errorf("exit code %d, %q, want %q", got.code, got.stderr, want)
		}
	})
	t.Run("with something left", func(t *testing.T) {
		dir, bin := t.TempDir(), t.TempDir()
		write(t, dir+"/10.conflist", 0o644, `{"cniVersion": "1.0.0", "name": "leaky", "plugins": [{"type": "leaky"}]}`)
		write(t, bin+"/leaky", 0o755, "#!/bin/sh\n[ $CNI_COMMAND = ADD ] || exit 0\n"+
			`mkdir /var/lib/$CNI_CONTAINERID; echo '{"cniVersion": "1.0.0"}'`)
		if err := os.Symlink(p.path("plugins/loopback"), bin+"/loopback"); err != nil {
			t.Fatal(err)
		}
		got := p.run(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-config", dir, "-plugins", bin) })
		if want := "left of the containers:\n    dir /var/lib/client/\n    dir /var/lib/web/\n"; !strings.HasSuffix(got.stdout, want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
		if want := "the containers did not leave the host as it was\n"; got.code != 1 || !strings.HasSuffix(got.stderr, want) {
			t.Errorf("exit code %d, %q, want %q", got.code, got.stderr, want)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		got := p.run(t, p.executables, unix.SIGINT)
		if got.code != 1 || got.stderr != "quickstart: interrupted\n" ||
			!strings.HasSuffix(got.stdout, "left of the containers: nothing\n") {
			t.Errorf("exit code %d\n%s%s", got.code, got.stderr, got.stdout)
		}
	})
}

// TestInProcess needs no plugin, no iptables and no nft. With these tools the
// output equals that of executables. Without them the audit cannot see rules.
func TestInProcess(t *testing.T) {
	p := newProgram(t)
	if missing := notBuiltIn("bridge", "host-local", "portmap", "ptp"); len(missing) > 0 {
		want := "quickstart: not built in: " + strings.Join(missing, ", ") + ": name a directory"
		if got := p.run(t, nil); got.code != 1 || got.stdout != "" || !strings.HasPrefix(got.stderr, want) {
			t.Errorf("exit code %d, want one and %q\n%s%s", got.code, want, got.stderr, got.stdout)
		}
		return
	}
	measured := strings.Replace(wantRun, "detached web", wantFirstPackets+"detached web", 1)
	got := p.run(t, nil)
	checkRun(t, got, measured)
	checkFirstPackets(t, got.stdout)
	checkRun(t, p.run(t, func(cmd *exec.Cmd) { asNobody(t, cmd); cmd.Args = append(cmd.Args, "-first", "2") }), measured)
	checkRun(t, p.run(t, func(cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-first", "0") }), wantRun)
	t.Run("with no tools", func(t *testing.T) {
		empty := t.TempDir()
		got := p.run(t, func(cmd *exec.Cmd) {
			cmd.Env = append(os.Environ(), "PATH="+empty)
			cmd.Args = append(cmd.Args, "-first", "2")
			hideSystemPrograms(t)
		})
		if got.code != 0 || got.stderr != "" || strings.Contains(got.stdout, "✗") ||
			!strings.HasSuffix(got.stdout, "left of the containers: nothing\n") {
			t.Errorf("exit code %d\n%s%s", got.code, got.stderr, got.stdout)
		}
	})
}

// notBuiltIn returns those types that this platform has no built-in plugin for.
func notBuiltIn(types ...string) []string {
	return slices.DeleteFunc(types, func(typ string) bool { return builtin.Lookup(typ) != nil })
}

func TestErrorsSayWhatToDo(t *testing.T) {
	p := newProgram(t)
	broken := t.TempDir()
	p.copyNetwork(t, "10-bridge.conflist", broken)
	write(t, broken+"/20-broken.conflist", 0o644, `{"plugins": [`)
	empty, unknown := t.TempDir(), t.TempDir()
	write(t, unknown+"/10.conflist", 0o644, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "loopback", "ipam": {"type": "nobodys-ipam"}}, {"type": "nobodys"}]}`)

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
			func(t *testing.T, cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-plugins", empty) },
			[]string{"no plugin bridge, host-local, loopback, portmap, ptp in " + empty, "leave -plugins out"},
		},
		"not built in": {
			func(t *testing.T, cmd *exec.Cmd) { cmd.Args = append(cmd.Args, "-config", unknown) },
			[]string{"not built in: nobodys, nobodys-ipam: ", "-plugins"},
		},
		"executables without nft": {
			func(t *testing.T, cmd *exec.Cmd) {
				p.executables(cmd)
				cmd.Env = append(os.Environ(), "PATH="+empty)
				hideSystemPrograms(t)
			},
			[]string{"nft is not installed", "leave -plugins out", "apt-get install nftables"},
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

// wantRun is the program's output without the parts that differ between runs.
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
2 addr, 10 dir, N file, 1 link, 39 nft, 2 route
left of the containers: nothing
`

// wantFirstPackets is the output with measured first packets.
const wantFirstPackets = `FIRST PACKET, WITH ITS ANSWER NETWORK FAMILY MEDIAN SLOWEST
container → container bridge-net IPv4 N ms N ms
container → container bridge-net IPv6 N ms N ms
container → host bridge-net IPv4 N ms N ms
container → host bridge-net IPv6 N ms N ms
host → container bridge-net IPv4 N ms N ms
host → container bridge-net IPv6 N ms N ms
container → container ptp-net IPv4 N ms N ms
container → container ptp-net IPv6 N ms N ms
container → host ptp-net IPv4 N ms N ms
container → host ptp-net IPv6 N ms N ms
host → container ptp-net IPv4 N ms N ms
host → container ptp-net IPv6 N ms N ms
of N new containers each, in N s

`

// checkFirstPackets checks the medians. They are below 5 ms on an idle machine.
// A packet that waits for something takes a second.
func checkFirstPackets(t *testing.T, stdout string) {
	t.Helper()
	_, table, _ := strings.Cut(stdout, "FIRST PACKET")
	medians := regexp.MustCompile(`IPv[46] +([\d.]+) ms`).FindAllStringSubmatch(table, -1)
	if len(medians) != strings.Count(wantFirstPackets, "IPv") {
		t.Errorf("%d medians in\n%s", len(medians), table)
	}
	for _, m := range medians {
		if ms, err := strconv.ParseFloat(m[1], 64); err != nil || ms > 100 {
			t.Errorf("a median of %s ms in\n%s", m[1], table)
		}
	}
}

func checkRun(t *testing.T, got outcome, want string) {
	t.Helper()
	if got.code != 0 || got.stderr != "" {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
	for line := range strings.Lines(got.stdout) {
		if n := utf8.RuneCountInString(line) - 1; n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	gotLines, wantLines := strings.Split(plain(got.stdout), "\n"), strings.Split(want, "\n")
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

// plain removes the parts of the output that vary: column widths, times, MAC
// addresses, and the number of files kept for reuse.
func plain(output string) string {
	for _, r := range []struct{ expr, with string }{
		{`(?m)^ +| +$`, ""},
		{` +`, " "},
		{`[\d.]+ ms`, "N ms"},
		{`of \d+ new containers each, in [\d.]+ s`, "of N new containers each, in N s"},
		{`\d+ file`, "N file"},
		{`([0-9a-f]{2}:){5}[0-9a-f]{2}`, "MAC"},
	} {
		output = regexp.MustCompile(r.expr).ReplaceAllString(output, r.with)
	}
	return output
}
