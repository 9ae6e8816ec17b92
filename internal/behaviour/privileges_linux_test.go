package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// ordinary is the ID of a user who has only the given privileges.
const ordinary = 1000

// lives runs a container's life in a process of an ordinary user with these
// capabilities. It returns the process's output: the error, or nothing.
func (h *realHost) lives(j testhost.Job, capabilities ...uintptr) string {
	h.T.Helper()
	cmd := j.Command(h.T)
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

// giveAway gives the host's files to the ordinary user, with plugins that this
// user can execute.
func (h *realHost) giveAway() {
	h.T.Helper()
	expect.NoError(h.T, os.MkdirAll(h.Path("bin"), 0o755))
	plugins, err := filepath.Glob(filepath.Join(testhost.ReferencePlugins(h.T), "*"))
	expect.NoError(h.T, err)
	for _, path := range plugins {
		data, err := os.ReadFile(path)
		expect.NoError(h.T, err)
		expect.NoError(h.T, os.WriteFile(h.Path("bin", filepath.Base(path)), data, 0o755))
	}
	expect.NoError(h.T, os.Chmod(filepath.Dir(h.Dir), 0o755)) // t.TempDir reserves it for root
	for _, dir := range []string{"state", "ipam"} {
		expect.NoError(h.T, os.MkdirAll(h.Path(dir), 0o755))
		expect.NoError(h.T, os.Chown(h.Path(dir), ordinary, ordinary))
	}
}

// TestFault_F61_LegacyIPTablesByAnOrdinaryUser: legacy iptables needs one more
// capability and its lock.
func TestFault_F61_LegacyIPTablesByAnOrdinaryUser(t *testing.T) {
	h := newRealHost(t)
	h.giveAway()
	lock := h.Write("xtables.lock", "")
	expect.NoError(t, os.Chown(lock, ordinary, ordinary))
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(tool + "-legacy" + what)
			expect.NoError(t, err)
			expect.NoError(t, os.MkdirAll(h.Path("sbin"), 0o755))
			expect.NoError(t, os.Symlink(path, h.Path("sbin", tool+what)))
		}
	}
	t.Setenv("PATH", h.Path("sbin")+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", lock)
	conf := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, "ipMasqBackend": "iptables", ` + testhost.HostLocal(testhost.V4Range)),
		`{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`}}
	path := h.Container("c1")
	before := h.Audit()
	said := h.lives(testhost.Job{
		Verb: "LIFE", ID: "c1", NetNS: path, Conf: conf.Conf("podnet", "1.1.0", h.Path("ipam")),
		StateDir: h.Path("state"), PluginDir: h.Path("bin"), HostNetNS: h.Path("netns", "host"),
	}, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_RAW)
	if said != "" {
		t.Errorf("as user %d: %s", ordinary, said)
	}
	h.WantClean(before)
}

// TestFault_F61_TheCapabilitiesThatAreNamedSuffice: README's list of privileges
// is complete. A user other than root needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
func TestFault_F61_TheCapabilitiesThatAreNamedSuffice(t *testing.T) {
	for _, c := range []struct {
		name      string
		inProcess bool
		backend   string // of the packet filter
		legacy    bool   // legacy iptables already has tables
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
			conf := testhost.Case{Plugins: []string{
				testhost.BridgeConf(`"ipMasq": true, ` + masq + testhost.HostLocal(testhost.V4Range)),
				`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`}}
			path := h.Container("c1")
			before := h.Audit()
			said := h.lives(testhost.Job{
				Verb: "LIFE", ID: "c1", NetNS: path, Conf: conf.Conf("podnet", "1.1.0", h.Path("ipam")),
				StateDir: h.Path("state"), PluginDir: h.Path("bin"), HostNetNS: h.Path("netns", "host"), InProcess: c.inProcess,
			}, unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN)
			if said != "" {
				t.Errorf("as user %d: %s", ordinary, said)
			}
			h.WantClean(before)
		})
	}
}

// life makes every call of a runtime on a container, with each way to remove it
// once.
func life(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	id, path := j.ID, j.NetNS
	for _, remove := range []func() error{
		func() error { return r.Remove(ctx, id, path) },
		func() error {
			report, err := r.GC(ctx, cni.GCOptions{KeepNone: true})
			return errors.Join(err, report.Err())
		},
	} {
		if _, err := r.Setup(ctx, id, path, cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}})); err != nil {
			return err
		}
		if err := r.Check(ctx, id, path); err != nil {
			return err
		}
		report, err := r.Recover(ctx)
		if err = errors.Join(err, report.Err()); err != nil {
			return err
		}
		if err := r.Check(ctx, id, path); err != nil {
			return fmt.Errorf("after Recover (%+v): %w", report, err)
		}
		if err := remove(); err != nil {
			return err
		}
	}
	return nil
}
