package behaviour_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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
	expect.NoError(h.T, os.CopyFS(h.Path("bin"), os.DirFS(testhost.ReferencePlugins(h.T))))
	expect.NoError(h.T, os.Chmod(filepath.Dir(h.Dir), 0o755)) // t.TempDir reserves it for root
	for _, dir := range []string{"state", "ipam"} {
		expect.NoError(h.T, os.MkdirAll(h.Path(dir), 0o755))
		expect.NoError(h.T, os.Chown(h.Path(dir), ordinary, ordinary))
	}
}

// useLegacy makes legacy iptables the plain name, with a lock of the ordinary user's.
func (h *realHost) useLegacy(t *testing.T) {
	h.T.Helper()
	lock := h.Write("xtables.lock", "")
	expect.NoError(t, os.Chown(lock, ordinary, ordinary), os.Mkdir(h.Path("sbin"), 0o755))
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			path := expect.Value(exec.LookPath(tool + "-legacy" + what))(t)
			expect.NoError(t, os.Symlink(path, h.Path("sbin", tool+what)))
		}
	}
	t.Setenv("PATH", h.Path("sbin")+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", lock)
}

// TestFault_F61_TheCapabilitiesThatAreNamedSuffice: README's list of privileges
// is complete. A user other than root needs CAP_NET_ADMIN and CAP_SYS_ADMIN; legacy iptables
// needs one more capability and its lock.
func TestFault_F61_TheCapabilitiesThatAreNamedSuffice(t *testing.T) {
	for _, c := range []struct {
		name      string
		inProcess bool
		backend   string // of the packet filter
		legacy    string // the host's iptables: "" nft, "beside" with tables of others, or "used"
	}{
		{"in process, nftables", true, "nftables", ""},
		{"in process, none named", true, "", ""},
		{"in process, legacy tables beside", true, "nftables", "beside"},
		{"executables, nftables", false, "nftables", ""},
		{"executables, legacy tables beside", false, "nftables", "beside"},
		{"executables, legacy iptables", false, "iptables", "used"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newRealHost(t)
			h.giveAway()
			capabilities := []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}
			switch c.legacy {
			case "beside":
				h.sh("iptables-legacy -t nat -N ANOTHERS; iptables-legacy -t filter -N ANOTHERS")
			case "used":
				h.useLegacy(t)
				capabilities = append(capabilities, unix.CAP_NET_RAW)
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
			}, capabilities...)
			expect.Same(t, fmt.Sprint("error as user ", ordinary), said, "")
			h.WantClean(before)
		})
	}
}
