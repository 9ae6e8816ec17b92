package cni_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ordinary is a user without privileges but those that are given him.
const ordinary = 1000

// lives runs a container's life in a process of an ordinary user with these
// capabilities, and returns what it printed: the error, or nothing.
func (h *realHost) lives(j job, capabilities ...uintptr) string {
	h.t.Helper()
	input, err := json.Marshal(j)
	wantNil(h.t, err)
	cmd := exec.CommandContext(h.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), otherRuntimeEnv+"=1")
	cmd.Stdin = bytes.NewReader(input)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential:  &syscall.Credential{Uid: ordinary, Gid: ordinary},
		AmbientCaps: capabilities,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

// giveAway makes the host's files those of the ordinary user, with plugins that
// he can execute.
func (h *realHost) giveAway() {
	h.t.Helper()
	wantNil(h.t, os.MkdirAll(h.path("bin"), 0o755))
	plugins, err := filepath.Glob(filepath.Join(referencePlugins(h.t), "*"))
	wantNil(h.t, err)
	for _, path := range plugins {
		data, err := os.ReadFile(path)
		wantNil(h.t, err)
		wantNil(h.t, os.WriteFile(h.path("bin", filepath.Base(path)), data, 0o755))
	}
	wantNil(h.t, os.Chmod(filepath.Dir(h.dir), 0o755)) // t.TempDir has it to itself
	for _, dir := range []string{"state", "ipam"} {
		wantNil(h.t, os.MkdirAll(h.path(dir), 0o755))
		wantNil(h.t, os.Chown(h.path(dir), ordinary, ordinary))
	}
}

// Legacy iptables wants one capability more, and its lock.
func TestFault_F61_LegacyIPTablesByAnOrdinaryUser(t *testing.T) {
	h := newRealHost(t)
	h.giveAway()
	lock := h.write("xtables.lock", "")
	wantNil(t, os.Chown(lock, ordinary, ordinary))
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(tool + "-legacy" + what)
			wantNil(t, err)
			wantNil(t, os.MkdirAll(h.path("sbin"), 0o755))
			wantNil(t, os.Symlink(path, h.path("sbin", tool+what)))
		}
	}
	t.Setenv("PATH", h.path("sbin")+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", lock)
	conf := realCase{plugins: []string{
		bridgeConf(`"ipMasq": true, "ipMasqBackend": "iptables", ` + hostLocal(v4Range)),
		`{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`}}
	path := h.container("c1")
	before := h.audit()
	said := h.lives(job{
		Verb: "LIFE", ID: "c1", NetNS: path, Conf: conf.conf("podnet", "1.1.0", h.path("ipam")),
		StateDir: h.path("state"), PluginDir: h.path("bin"), HostNetNS: h.path("netns", "host"),
	}, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_RAW)
	if said != "" {
		t.Errorf("as user %d: %s", ordinary, said)
	}
	h.wantClean(before)
}

// README's list of privileges is all that it takes: a user other than root, with
// CAP_NET_ADMIN and CAP_SYS_ADMIN.
func TestFault_F61_TheCapabilitiesThatAreNamedSuffice(t *testing.T) {
	for _, c := range []struct {
		name      string
		inProcess bool
		backend   string // of the packet filter
		legacy    bool   // legacy iptables has tables already
	}{
		{"in process, nftables", true, "nftables", false},
		{"in process, none named", true, "", false},
		{"in process, legacy tables beside", true, "nftables", true},
		{"executables, nftables", false, "nftables", false},
		{"executables, legacy tables beside", false, "nftables", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newRealHost(t)
			h.giveAway()
			if c.legacy {
				h.run("iptables-legacy", "-t", "nat", "-N", "ANOTHERS")
				h.run("iptables-legacy", "-t", "filter", "-N", "ANOTHERS")
			}
			masq, portmap := "", ""
			if c.backend != "" {
				masq, portmap = fmt.Sprintf(`"ipMasqBackend": %q, `, c.backend), fmt.Sprintf(`"backend": %q, `, c.backend)
			}
			conf := realCase{plugins: []string{
				bridgeConf(`"ipMasq": true, ` + masq + hostLocal(v4Range)),
				`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`}}
			path := h.container("c1")
			before := h.audit()
			said := h.lives(job{
				Verb: "LIFE", ID: "c1", NetNS: path, Conf: conf.conf("podnet", "1.1.0", h.path("ipam")),
				StateDir: h.path("state"), PluginDir: h.path("bin"), HostNetNS: h.path("netns", "host"), InProcess: c.inProcess,
			}, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN)
			if said != "" {
				t.Errorf("as user %d: %s", ordinary, said)
			}
			h.wantClean(before)
		})
	}
}
