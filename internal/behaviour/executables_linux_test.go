package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// exchanged is a network with each kind of rules, and what libcni takes for a container.
func (h *realHost) exchanged(masq, portmap string) (conf []byte, rt *libcni.RuntimeConf) {
	h.T.Helper()
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + masq + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", ` + portmap + `"capabilities": {"portMappings": true}}`, `{"type": "firewall"}`}}
	return c.Conf("podnet", "1.0.0", h.Path("ipam")), &libcni.RuntimeConf{
		ContainerID: "c1", IfName: "eth0", NetNS: h.Container("c1"),
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
	}
}

func (h *realHost) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{testhost.ReferencePlugins(h.T)}, h.Path("state"), nil)
}

// TestReferencePluginsDetachWhatBuiltInPluginsAttached: their DELs succeed, although they
// know none of the rules. Remove deletes these then, and those of nobody else.
func TestReferencePluginsDetachWhatBuiltInPluginsAttached(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := newRealHost(t)
			conf, rt := h.exchanged("", "")
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins())
			before := h.Audit()
			testhost.MustSetUp(t, r, "c1", rt.NetNS, testhost.MapPort(8080))
			list := expect.Value(libcni.NetworkConfFromBytes(conf))(t)
			expect.NoError(t, h.libcni().DelNetworkList(t.Context(), list, rt))
			expect.NoError(t, r.Remove(t.Context(), "c1", rt.NetNS))
			h.WantClean(before)
		})
	}
}

// TestRulesOfReferencePluginsAreRemovedWithoutThem: what executables attached, in each of
// their forms and for a program that has no record, is removed by built-in plugins and the sweep.
func TestRulesOfReferencePluginsAreRemovedWithoutThem(t *testing.T) {
	for _, tt := range [][2]string{{"nft", "iptables"}, {"legacy", "iptables"}, {"nft", "nftables"}} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			plugintest.UseIPTables(t, tt[0])
			h := newRealHost(t)
			conf, rt := h.exchanged(fmt.Sprintf(`"ipMasqBackend": %q, `, tt[1]), fmt.Sprintf(`"backend": %q, `, tt[1]))
			list := expect.Value(libcni.NetworkConfFromBytes(conf))(t)
			r := h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins(), cni.WithPluginDir([]string{h.Path("none")}))
			before := h.Audit()
			expect.Value(h.libcni().AddNetworkList(t.Context(), list, rt))(t)
			expect.NoError(t, r.Remove(t.Context(), "c1", rt.NetNS))
			h.WantClean(before)
		})
	}
}

// TestInProcessStartsNoProcess has no plugin directory at all. It also runs
// executables, to prove that it would notice them. The network of WithLoNetwork is in
// process even with executables, and a configuration like it is not.
func TestInProcessStartsNoProcess(t *testing.T) {
	h := newRealHost(t)
	cycle := func(r *cni.Runtime, id string) func() error {
		path := h.Container(id)
		return func() error {
			_, err := r.Setup(t.Context(), id, path, onePort)
			return errors.Join(err, r.Check(t.Context(), id, path), r.Remove(t.Context(), id, path))
		}
	}
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Runtime(cni.WithLoNetwork, cni.WithPluginDir(nil)), "c1")), false)
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(cni.WithLoNetwork), "c3")), false)
	own := cni.WithConfListBytes([]byte(`{"cniVersion": "0.4.0", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`))
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(own), "c4")), true)
	expect.Same(t, "a process was started", startsProcess(t, cycle(h.Real(own, cni.WithBuiltinPlugins("loopback")), "c5")), false)

	for i, backend := range []string{``, `, "ipMasqBackend": "nftables"`} {
		conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net%d", "plugins": [
			{"type": "bridge", "bridge": "noproc%d", "isGateway": true, "ipMasq": true%s,
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.%d.0.0/24"}], [{"subnet": "fd%d::/64"}]]}},
			{"type": "portmap"%s, "capabilities": {"portMappings": true}}, {"type": "tuning"}]}`,
			i, i, backend, h.Path("ipam"), 80+i, 80+i, strings.Replace(backend, "ipMasqBackend", "backend", 1))
		id := fmt.Sprint("nat", i)
		expect.Same(t, "a process was started", startsProcess(t, cycle(h.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(conf))), id)), false)
	}
}

// TestDefaultConflistStartsNoProcess: on a host with iptables-nft, the plugins of the
// configuration that runtimes install, none of which names a backend, change and read
// rules of iptables without it.
func TestDefaultConflistStartsNoProcess(t *testing.T) {
	h := newRealHost(t)
	plugintest.UseIPTables(t, "nft")
	h.installPlugins(false)
	c := testhost.Case{Plugins: []string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "capabilities": {"portMappings": true}}`, `{"type": "firewall"}`,
		`{"type": "tuning"}`}}
	r := h.Runtime(cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	c1, c2 := h.Container("c1"), h.Container("c2")
	before, started := h.Audit(), h.toolsStarted()
	step := func(what string, err error) {
		t.Helper()
		expect.NoError(t, err)
		expect.Same(t, what+" started", started(), "")
	}
	setup := func(id, path string, port int) error {
		_, err := r.Setup(t.Context(), id, path, portOf(port))
		return err
	}
	step("the first ADD", setup("c1", c1, 1))
	step("ADD", setup("c2", c2, 2))
	step("CHECK", r.Check(t.Context(), "c1", c1))
	step("DEL", r.Remove(t.Context(), "c1", c1))
	step("CHECK", r.Check(t.Context(), "c2", c2))
	step("the last DEL", r.Remove(t.Context(), "c2", c2))
	h.WantClean(before)
}

// toolsStarted has each tool of a packet filter note that it was started, and returns
// a function that returns these notes since its last call.
func (h *realHost) toolsStarted() func() string {
	h.T.Helper()
	log := h.Path("started")
	tools := []string{"nft"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			tools = append(tools, family+"-"+variant+"-save", family+"-"+variant+"-restore")
		}
	}
	for _, name := range tools {
		tool := expect.Value(exec.LookPath(name))(h.T)
		path := write(h.Host, "noting/"+name, fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nexec %s \"$@\"\n", name, log, tool))
		expect.NoError(h.T, os.Chmod(path, 0o755))
	}
	h.T.Setenv("PATH", h.Path("noting")+":"+os.Getenv("PATH"))
	return func() string {
		notes, err := os.ReadFile(log)
		if errors.Is(err, fs.ErrNotExist) {
			return ""
		}
		expect.NoError(h.T, err, os.Remove(log))
		return string(notes)
	}
}

// startsProcess reports whether fn starts a process, in any way: one that was waited for
// is in the kernel's account of children, where even the start of a program has page
// faults, and another is below this one, because orphans become the test binary's.
func startsProcess(t *testing.T, fn func() error) bool {
	t.Helper()
	faults := func() int64 {
		var u unix.Rusage
		expect.NoError(t, unix.Getrusage(unix.RUSAGE_CHILDREN, &u))
		return int64(u.Minflt) + int64(u.Majflt)
	}
	before, used := children(t), faults()
	expect.NoError(t, fn())
	return faults() != used || !slices.Equal(before, children(t))
}

// TestFault_F16_RealCrowdOnAColdHostAndAfterAFlush: all are attached, with an address each. On
// the cold host no rule is there twice. After a flush, as by administrators, firewalld and
// docker, the executables may make copies of the rules that they share, which do no more
// than one of them.
func TestFault_F16_RealCrowdOnAColdHostAndAfterAFlush(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) {
			plugintest.UseIPTables(t, variant)
			h := newRealHost(t)
			c := testhost.Case{Plugins: []string{
				testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range)),
				`{"type": "firewall", "backend": "iptables", "ingressPolicy": "same-bridge"}`,
				`{"type": "portmap", "backend": "iptables", "snat": true, "capabilities": {"portMappings": true}}`,
			}}
			r := h.Real(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
			for round, flush := range []string{
				":", // a cold host
				"$f -F; $f -t nat -F",
				"$f -F; $f -X; $f -t nat -F; $f -t nat -X",
				"$f -F FORWARD; $f -t nat -F POSTROUTING; $f -t nat -F OUTPUT",
			} {
				h.sh("for f in iptables ip6tables; do " + flush + "; done")
				h.crowd(r, round, 8)
			}
		})
	}
}

// crowd attaches and detaches containers at once.
func (h *realHost) crowd(r *cni.Runtime, round, n int) {
	h.T.Helper()
	paths, addresses := make([]string, n), make([]string, n)
	id := func(i int) string { return fmt.Sprintf("c%d-%d", round, i) }
	for i := range n {
		paths[i] = h.Container(id(i))
	}
	before := h.Audit()
	expect.NoError(h.T, testhost.InParallel(n, func(i int) error {
		result, err := r.Setup(h.T.Context(), id(i), paths[i], testhost.MapPort(int32(10000+i)))
		if err == nil {
			addresses[i] = result.IPv4().Prefix.String()
		}
		return err
	}))
	seen := map[string]bool{}
	for _, l := range append(addresses, h.Audit()...) {
		if seen[l] && (round == 0 && strings.HasPrefix(l, "ip") || strings.HasPrefix(l, "10.")) {
			h.T.Errorf("twice: %s", l)
		}
		seen[l] = true
	}
	expect.NoError(h.T, testhost.InParallel(n, func(i int) error { return r.Remove(h.T.Context(), id(i), paths[i]) }))
	if round == 0 {
		h.WantClean(before)
	}
}

// addressed is a container with its addresses.
type addressed struct{ path, v4, v6 string }

func (h *realHost) attach(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) addressed {
	h.T.Helper()
	path := h.Container(id)
	result := testhost.MustSetUp(h.T, r, id, path, opts...)
	return addressed{path, result.IPv4().IP().String(), result.IPv6().IP().String()}
}

func (h *realHost) detach(r *cni.Runtime, id string) {
	h.T.Helper()
	expect.NoError(h.T, r.Remove(context.Background(), id, h.Path("netns", id)))
}

// sh runs a script on the host.
func (h *realHost) sh(script string) {
	h.T.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	expect.Must(h.T, err == nil, "%s\n%v: %s; install iptables, nftables and iproute2", script, err, out)
}

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
	lock := write(h.Host, "xtables.lock", "")
	expect.NoError(t, os.Chown(lock, ordinary, ordinary), os.Mkdir(h.Path("sbin"), 0o755))
	for _, tool := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			expect.NoError(t, os.Symlink(expect.Value(exec.LookPath(tool+"-legacy"+what))(t), h.Path("sbin", tool+what)))
		}
	}
	t.Setenv("PATH", h.Path("sbin")+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", lock)
}

// TestFault_F61_TheCapabilitiesThatAreNamedSuffice: the list of privileges in docs/deployment.md
// is complete. A user other than root needs CAP_NET_ADMIN and CAP_SYS_ADMIN; legacy iptables
// needs one more capability and its lock.
func TestFault_F61_TheCapabilitiesThatAreNamedSuffice(t *testing.T) {
	for _, c := range []struct {
		name      string
		inProcess bool
		backend   string // of the packet filter
		legacy    string // the host's iptables: "" nft, "beside" with tables of others, or "used"
	}{
		{"in process, none named", true, "", ""},
		{"in process, legacy tables beside", true, "", "beside"},
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

// life makes every call of a runtime on a container, with each way to remove it
// once.
func life(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	id, path := j.ID, j.NetNS
	for _, remove := range []func() error{
		func() error { return r.Remove(ctx, id, path) },
		func() error { return expect.Reported(r.GC(ctx, cni.GCOptions{KeepNone: true})) },
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
