package behaviour_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// An earlierHost is a host in the state in which the version before 2027 left it when
// it was killed: 95 containers on nine networks with rules in each form, by built-in
// plugins and executables, some with ports that Setup had chosen, one of them held; and
// a pool with three containers that nobody had taken and two that somebody had.
// testdata/earlier.json.gz holds the files of that version, and what iptables-save, nft and
// ip printed. All paths are below /mnt/host.
type earlierHost struct {
	*realHost
	Confs      map[string]string // by network
	Namespaces map[string]struct {
		Path string
		ID   string // device and inode at that time
		IP   string // for ip -batch
	}
	Ends    string              // for ip -batch on the host, when all containers are there
	Rules   map[string]string   // by tool: its saved rules
	Sysctls map[string]string   // below /proc/sys/net, that were not 0
	Files   map[string]string   // on disk
	Names   map[string][]string // other names of these files
}

// newEarlierHost makes the interfaces, rules and files as they were, but for the
// identities of namespaces and of the boot.
func newEarlierHost(t *testing.T) *earlierHost {
	t.Helper()
	h := &earlierHost{realHost: newRealHost(t)}
	packed := expect.Value(os.Open("testdata/earlier.json.gz"))(t)
	expect.NoError(t, json.NewDecoder(expect.Value(gzip.NewReader(packed))(t)).Decode(h))
	expect.NoError(t, packed.Close())
	h.mount()
	return h
}

// mount gives the host the directory that the records name, in this mount namespace.
func (h *earlierHost) mount() {
	h.T.Helper()
	expect.NoError(h.T, unix.Mount("none", "/mnt", "tmpfs", 0, ""))
	h.T.Cleanup(func() { expect.NoError(h.T, unix.Unmount("/mnt", unix.MNT_DETACH)) })
	h.Dir = "/mnt/host"
	expect.NoError(h.T, os.MkdirAll(h.Path("netns"), 0o755))
	h.Host.NewNetNS("host")
	host := expect.Value(netns.Open(h.Path("netns", "host")))(h.T)
	nettest.Enter(h.T, host)
	nettest.SetUp(h.T, host, "lo")
	expect.NoError(h.T, host.Close())
	expect.NoError(h.T, nettest.NoAddressDetection())
	expect.NoError(h.T, os.CopyFS(h.Path("bin"), os.DirFS(testhost.ReferencePlugins(h.T))))
}

// restore brings back what the earlier version left.
func (h *earlierHost) restore() {
	h.T.Helper()
	h.batch("", h.Namespaces["host"].IP)
	for _, id := range slices.Sorted(maps.Keys(h.Namespaces)) {
		if id == "host" {
			continue
		}
		ns := h.Namespaces[id]
		expect.NoError(h.T, os.MkdirAll(filepath.Dir(ns.Path), 0o755))
		nettest.At(h.T, ns.Path)
		h.Inside(ns.Path, nettest.NoAddressDetection)
		h.batch(ns.Path, ns.IP)
	}
	h.batch("", h.Ends)
	for tool, saved := range h.Rules {
		restore := exec.Command(tool + "-restore")
		if tool == "nft" {
			restore = exec.Command("nft", "-f", "-")
		}
		restore.Stdin = strings.NewReader(saved)
		out, err := restore.CombinedOutput()
		expect.Must(h.T, err == nil, "%s: %v: %s", restore, err, out)
	}
	for name, value := range h.Sysctls {
		expect.NoError(h.T, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644))
	}
	h.writeFiles()
}

// batch has ip(8) run commands in the namespace at path, or on the host.
func (h *earlierHost) batch(path, commands string) {
	h.T.Helper()
	run := func() error {
		ip := exec.Command("ip", "-batch", "-")
		ip.Stdin = strings.NewReader(commands)
		if out, err := ip.CombinedOutput(); err != nil {
			return fmt.Errorf("ip -batch in %q: %w: %s; install iproute2", path, err, out)
		}
		return nil
	}
	if path == "" {
		expect.NoError(h.T, run())
		return
	}
	h.Inside(path, run)
}

// writeFiles writes the files, with other names and pins as they were. The records get
// the identities of the present namespaces, boot and view, as if the same machine had
// gone on.
func (h *earlierHost) writeFiles() {
	h.T.Helper()
	now := h.present()
	for name, content := range h.Files {
		path := h.Path(name)
		expect.NoError(h.T, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.HasPrefix(name, "state/embedcni/attachments/") && strings.HasSuffix(name, ".json") {
			content = now(content)
		}
		expect.NoError(h.T, os.WriteFile(path, []byte(content), 0o600))
		for _, other := range h.Names[name] {
			expect.NoError(h.T, os.MkdirAll(filepath.Dir(h.Path(other)), 0o755))
			expect.NoError(h.T, os.Link(path, h.Path(other)))
		}
	}
	for id, ns := range h.Namespaces {
		if pin := h.Pin(id); id != "host" && !strings.Contains(ns.Path, "/pool/") {
			expect.NoError(h.T, os.MkdirAll(filepath.Dir(pin), 0o755))
			expect.NoError(h.T, os.WriteFile(pin, nil, 0o600))
			expect.NoError(h.T, unix.Mount(ns.Path, pin, "", unix.MS_BIND, ""))
		}
	}
}

// present returns a function that makes an earlier record one of the present machine. What
// it says of that is taken from a record of the present version.
func (h *earlierHost) present() (now func(record string) string) {
	h.T.Helper()
	other := &testhost.Host{T: h.T, Dir: h.T.TempDir()}
	r := other.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithLoNetwork, cni.WithoutReaping())
	path := other.Container("c1")
	testhost.MustSetUp(h.T, r, "c1", path)
	rec := expect.Value(other.Records().Load("c1"))(h.T)
	expect.NoError(h.T, r.Remove(h.T.Context(), "c1", path))
	ids := map[string]string{} // of namespaces, then and now
	for _, ns := range h.Namespaces {
		opened := expect.Value(netns.Open(ns.Path))(h.T)
		ids[ns.ID] = fmt.Sprintf("%d:%d", opened.ID().Dev, opened.ID().Ino)
		expect.NoError(h.T, opened.Close())
	}
	return func(lines string) string {
		var all []string
		for line := range strings.SplitSeq(lines, "\n") {
			_, text, found := strings.Cut(line, " ")
			if !found {
				all = append(all, line)
				continue
			}
			var is map[string]any
			number := json.NewDecoder(strings.NewReader(text))
			number.UseNumber()
			expect.NoError(h.T, number.Decode(&is))
			if base, ok := is["record"].(map[string]any); ok {
				base["boot"], base["host"], base["pidNS"] = rec.Boot, ids[base["host"].(string)], rec.PIDNS
				ns := base["netns"].(map[string]any)
				dev, ino, _ := strings.Cut(ids[fmt.Sprint(ns["dev"], ":", ns["ino"])], ":")
				ns["dev"], ns["ino"], ns["view"] = json.Number(dev), json.Number(ino), rec.NetNS.View
			}
			var out bytes.Buffer
			expect.NoError(h.T, json.NewEncoder(&out).Encode(is))
			data := bytes.TrimSpace(out.Bytes())
			sum := sha256.Sum256(data)
			all = append(all, hex.EncodeToString(sum[:8])+" "+string(data))
		}
		return strings.Join(all, "\n")
	}
}

// all are the IDs of the containers that somebody has.
func (h *earlierHost) all() (ids []string) {
	for id := range h.Namespaces {
		if id != "host" && !strings.HasPrefix(id, "warm-") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// each calls f for all, eight at once: each removal starts several processes.
func each(ids []string, f func(id string)) {
	thread.Each(len(ids), 8, func(i int) { f(ids[i]) })
}

// TestAnEarlierVersionsContainers are adopted, served and removed, and nothing is left.
func TestAnEarlierVersionsContainers(t *testing.T) {
	h := newEarlierHost(t)
	before := h.Audit()
	h.restore()
	r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes([]byte(h.Confs["default"])))
	all := h.all()
	expect.Same(t, "containers", len(all), 97)

	report := expect.Value(r.Recover(t.Context()))(t)
	slices.Sort(report.Adopted)
	expect.Same(t, "adopted", report.Adopted, all)
	expect.Same(t, "removed", len(report.Removed), 3) // the pool's
	expect.Same(t, "kept", report.Kept, map[string]error(nil))
	expect.Same(t, "repaired", report.Repaired, map[string][]cni.Difference(nil))
	expect.Same(t, "failed and skipped", len(report.Failed)+len(report.Skipped), 0)
	health := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "healthy", testhost.Healthy(health), len(all))

	expect.Same(t, "holds", len(expect.Value(guard.Holds(r))(t)), 1)
	h.wantServed(r)

	each(all, func(id string) {
		expect.Succeeds(t, "Remove", r.Remove(t.Context(), id, h.Namespaces[id].Path))
	})
	expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	expect.Same(t, "holds of nobody", len(expect.Value(guard.Holds(r))(t)), 0)
	h.WantClean(before)
}

// wantServed wants ports and addresses to be the containers', and rules that somebody
// flushes to come back.
func (h *earlierHost) wantServed(r *cni.Runtime) {
	t := h.T
	found := expect.Value(r.Lookup("chosen-1"))(t)
	web, _ := found.Port("web")
	expect.Same(t, "the port that Setup had chosen is known", web.HostPort != 0, true)
	path := h.Container("new")
	for _, taken := range []int32{web.HostPort, 20001} {
		expect.Is(t, errOf(r.Setup(t.Context(), "new", path, testhost.MapPort(taken))), cni.ErrPortInUse)
	}
	found = testhost.MustSetUp(t, r, "new", path)
	for _, a := range []netip.Addr{found.IPv4().IP(), found.IPv6().IP()} {
		who := expect.Value(r.LookupAddr(a))(t)
		expect.That(t, len(who) == 1 && who[0].ContainerID == "new", "%s is the address of %v", a, who)
	}
	expect.NoError(t, r.Remove(t.Context(), "new", path))

	for _, flush := range []string{"nft flush ruleset", "iptables-legacy -t nat -F", "iptables-legacy -F FORWARD"} {
		h.sh(flush)
	}
	each(h.all(), func(id string) {
		_, err := r.Repair(t.Context(), id, cni.RepairOptions{})
		expect.That(t, err == nil, "repair of %s: %v", id, err)
	})
	health := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "healthy after repairs", testhost.Healthy(health), len(h.all()))
}
