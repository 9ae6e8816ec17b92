package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// poolOfTheDead returns a stage with a container c1 that a pool of an earlier version has
// made, whose process has ended. It also returns the container's path.
func poolOfTheDead(t *testing.T) (s *stage, conf []byte, path string) {
	t.Helper()
	s = newStage(t)
	conf = s.Network("net", "1.0.0", "p")
	path = pooled(s.Host, s.Runtime(cni.WithConfListBytes(conf)), "warm-1", "c1")
	s.addLinkAt(path, "eth0")
	return s, conf, path
}

// addLinkAt gives the namespace at path an interface, and returns its hardware
// address.
func (s *stage) addLinkAt(path, name string) (mac string) {
	s.T.Helper()
	ns := expect.Value(netns.Open(path))(s.T)
	defer ns.Close()
	nettest.AddBridge(s.T, ns, name)
	return s.Link(path, name).Attrs().HardwareAddr.String()
}

// inhabit runs a process in the namespace at path until leave is called.
func inhabit(t testing.TB, path string) (leave func()) {
	t.Helper()
	_, leave = inhabitIn(t, path, 0)
	return leave
}

// inhabitIn is inhabit with a process in new namespaces of its own. It also returns the path
// of its network namespace.
func inhabitIn(t testing.TB, path string, flags uintptr) (inner string, leave func()) {
	t.Helper()
	ns := expect.Value(netns.Open(path))(t)
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	expect.NoError(t, ns.Do(cmd.Start), ns.Close())
	leave = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it cannot have ended
		_ = cmd.Wait()         // it was killed
	})
	t.Cleanup(leave)
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid), leave
}

// isNetNS reports whether a namespace is mounted at path.
func isNetNS(path string) bool {
	ns, err := netns.Open(path)
	return err == nil && ns.Close() == nil
}

// TestFault_F59_AStateDirectorySpelledAnotherWayHarmsNoPool: neither its own
// program nor another harms it, even if the record has the other spelling.
func TestFault_F59_AStateDirectorySpelledAnotherWayHarmsNoPool(t *testing.T) {
	for what, recorded := range map[string]func(s *stage, path string) string{
		"when it recovers":               func(_ *stage, path string) string { return path },
		"on record":                      func(s *stage, path string) string { return strings.Replace(path, s.Path("state"), s.Path("link"), 1) },
		"on record, of a link that went": func(s *stage, path string) string { return strings.Replace(path, s.Path("state"), s.Path("gone"), 1) },
	} {
		t.Run(what, func(t *testing.T) {
			s, conf, path := poolOfTheDead(t)
			expect.NoError(t, os.Symlink(s.Path("state"), s.Path("link")))
			s.ChangeRecord("c1", func(rec *record.Record) { rec.NetNS.Path = recorded(s, path) })
			for _, owner := range []string{"other", filepath.Base(os.Args[0])} {
				if owner != "other" && strings.HasSuffix(what, "that went") {
					return // its own program cannot find it by the record
				}
				r := s.restarted(conf, cni.WithStateDir(s.Path("link")), cni.WithOwner(owner))
				report := expect.Value(r.Recover(t.Context()))(t)
				expect.Same(t, owner+": c1 is removed", slices.Contains(report.Removed, "c1"), false)
				expect.Same(t, owner+": the container's namespace is mounted", isNetNS(path), true)
			}
			expect.NoError(t, s.restarted(conf, cni.WithStateDir(s.Path("link"))).Remove(t.Context(), "c1", ""))
			expect.Same(t, "the container's namespace is mounted after Remove", isNetNS(path), false)
		})
	}
}

// TestFault_F59_ADamagedRecordKeepsTheNamespacesOfAPool: it may belong to one
// of them.
func TestFault_F59_ADamagedRecordKeepsTheNamespacesOfAPool(t *testing.T) {
	s, conf, path := poolOfTheDead(t)
	whole := expect.Value(os.ReadFile(s.RecordFile("c1") + ".json"))(t)
	spoilBase(s.Host, "c1", "{")
	var log testhost.Log
	wantRecover(t, s.restarted(conf, cni.WithOwner("other"), log.Logger()), cni.Report{})
	expect.Same(t, "the container's namespace is mounted", isNetNS(path), true)
	lines := log.Lines("WARN")
	expect.That(t, len(lines) == 1 && strings.Contains(lines[0], "left for later"), "warnings: %q", lines)
	expect.NoError(t, os.WriteFile(s.RecordFile("c1")+".json", whole, 0o600))
	stray := filepath.Join(filepath.Dir(path), "warm-stray")
	ns, err := netns.Create(stray)
	expect.NoError(t, errors.Join(err, ns.Close()))
	wantRecover(t, s.restarted(conf, cni.WithOwner("other")), cni.Report{})
	expect.Same(t, "the stray beside it is there", expect.Exists(t, stray), false)
	expect.Same(t, "the container's namespace is mounted", isNetNS(path), true)
	expect.NoError(t, s.restarted(conf).Remove(t.Context(), "c1", ""))
}

// TestFault_F59_NoNamespaceWithAProcessInItIsAStray, whatever the records say.
func TestFault_F59_NoNamespaceWithAProcessInItIsAStray(t *testing.T) {
	s, conf, path := poolOfTheDead(t)
	expect.NoError(t, os.Remove(s.RecordFile("c1")+".json")) // as if a disk had lost it
	pin := filepath.Join(filepath.Dir(s.Pin("c2")), testhost.Hashed("c2"))
	ns, err := netns.Create(pin)
	expect.NoError(t, errors.Join(err, ns.Close()))
	leave, leavePin := inhabit(t, path), inhabit(t, pin)
	r := s.restarted(conf, cni.WithOwner("other"))
	wantRecover(t, r, cni.Report{})
	expect.Same(t, "mounted, with processes", []bool{isNetNS(path), isNetNS(pin)}, []bool{true, true})
	leave()
	leavePin()
	wantRecover(t, r, cni.Report{})
	expect.Same(t, "there, without them", []bool{expect.Exists(t, path), expect.Exists(t, pin)}, []bool{false, false})
}

// elsewhereMounted returns a stage on which c1 lives with a process inside, but
// its path and pin are invisible, as for a program restarted in another mount
// namespace.
func elsewhereMounted(t *testing.T) (s *stage, conf []byte, leave func()) {
	t.Helper()
	return elsewhereMountedWith(t, inhabit)
}

func elsewhereMountedWith(t *testing.T, inhabit func(t testing.TB, path string) (leave func())) (s *stage, conf []byte, leave func()) {
	t.Helper()
	s = newStage(t)
	path := s.Container("c1")
	mac := s.addLinkAt(path, "eth0")
	conf = s.Network("net", "1.1.0", "p", "q")
	result := fmt.Sprintf(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mac": %q, "sandbox": %q}], "ips": [{"address": "10.9.0.2/24", "interface": 0}]}`, mac, path)
	s.On("p", "ADD", scripted.Action{Stdout: &result})
	testhost.MustSetUp(t, s.restarted(conf), "c1", path)
	s.TakeCalls()
	leave = inhabit(t, path)
	s.hide("c1")
	return s, conf, leave
}

// hide replaces a container's path and pin by empty files.
func (s *stage) hide(id string) {
	s.T.Helper()
	expect.NoError(s.T, nettest.Unpin(s.Path("netns", id)))
	expect.NoError(s.T, nettest.Unpin(s.Pin(id)))
}

func TestFault_F59_AContainerThatIsMountedElsewhereLives(t *testing.T) {
	s, conf, leave := elsewhereMounted(t)
	r := s.restarted(conf)
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c2"))(), cni.ErrAlreadyAttached)
	wantRecover(t, r, adopted)
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c1/eth0", "CHECK q c1/eth0"})
	expect.Same(t, "kept again", isNetNS(s.Pin("c1")), true)

	// Its DEL runs inside.
	s.hide("c1")
	done, letGo := s.heldUp("q", "DEL", func() error { return r.Remove(t.Context(), "c1", "") })
	told := s.TakeCalls()[0].NetNS
	expect.Same(t, "CNI_NETNS leads to the container", hasLinkAt(t, told, "eth0"), true)
	letGo()
	expect.NoError(t, expect.Await(t, "Remove", done))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	leave()
}

// TestFault_F59_ANumberThatIsGivenAgainIsNoContainer: a namespace with the
// recorded number holds a process but nothing of the container's. It is left
// alone, and so is the container, until the caller says that it is gone.
func TestFault_F59_ANumberThatIsGivenAgainIsNoContainer(t *testing.T) {
	s, conf, leave := elsewhereMounted(t)
	s.ChangeRecord("c1", func(rec *record.Record) {
		rec.Attachments[0].Result = []byte(strings.Replace(string(rec.Attachments[0].Result), `"mac":"`, `"mac":"02:00:00:00:00:99","was":"`, 1))
	})
	r := s.restarted(conf)
	report := expect.Value(r.Recover(t.Context()))(t)
	expect.Same(t, "removed", report.Removed, []string(nil))
	fails(t, report.Skipped["c1"], "nothing shows whether it lives")
	expect.Same(t, "calls", s.Took(), []string{})
	fails(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c2"))())
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "CNI_NETNS", calls[0].NetNS, "")
	leave()
}

// TestAContainerThatNobodyIsInIsGone if neither path nor pin leads to it.
func TestAContainerThatNobodyIsInIsGone(t *testing.T) {
	s, conf, leave := elsewhereMounted(t)
	leave()
	wantRecover(t, s.restarted(conf), removed)
	expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
}

// TestFault_F52_APinThatIsRemovedInAnotherMountNamespaceIsGoneInAll: its file
// is deleted, and nothing stays mounted on it.
func TestFault_F52_APinThatIsRemovedInAnotherMountNamespaceIsGoneInAll(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	expect.Same(t, "kept", isNetNS(s.Pin("c1")), true)
	expect.NoError(t, onCopiedMounts(func() error { return r.Remove(t.Context(), "c1", "") }))
	expect.Lacks(t, "mounts", string(expect.Value(os.ReadFile("/proc/thread-self/mountinfo"))(t)), filepath.Dir(s.Pin("c1")))
	expect.Same(t, "the file is there", expect.Exists(t, s.Pin("c1")), false)
	s.RemoveNetNS("c1")
	testhost.MustSetUp(t, r, "c2", s.Container("c2"))
	expect.Same(t, "kept", isNetNS(s.Pin("c2")), true)
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}

// TestRecoverDeletesSpareFiles: earlier versions kept the files of records and
// pins for reuse, some with a mount.
func TestRecoverDeletesSpareFiles(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	pins := filepath.Dir(s.Pin("c1"))
	mounted, empty, record := filepath.Join(pins, "spare.0"), filepath.Join(pins, "spare.1"), filepath.Join(filepath.Dir(pins), "spare.0")
	ns, err := netns.Create(mounted)
	expect.NoError(t, errors.Join(err, ns.Close(), os.WriteFile(empty, nil, 0o600), os.WriteFile(record, []byte("a record"), 0o600)))
	wantRecover(t, s.restarted(conf), adopted)
	for _, path := range []string{mounted, empty, record} {
		expect.Same(t, path+" is there", expect.Exists(t, path), false)
	}
}

// onCopiedMounts runs f on a separate thread with a private copy of all mounts.
// The thread ends with f.
func onCopiedMounts(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// hasLinkAt reports whether the namespace at path has an interface.
func hasLinkAt(t testing.TB, path, name string) bool {
	t.Helper()
	ns := expect.Value(netns.Open(path))(t)
	err := ns.Do(func() error { return errOf(net.InterfaceByName(name)) })
	expect.NoError(t, ns.Close())
	return err == nil
}

// pooled attaches a container as a pool of an earlier version did, whose process has
// ended since: in a namespace in the pool's directory, and known to its plugins as
// pluginID. With an id it has been taken by that container; without, by nobody yet. It
// returns the path of the namespace.
func pooled(h *testhost.Host, r *cni.Runtime, pluginID, id string, opts ...cni.NamespaceOpts) (path string) {
	h.T.Helper()
	pool := h.Path("state", "embedcni", "attachments", "pool", "1:1")
	expect.NoError(h.T, os.MkdirAll(pool, 0o700))
	path = pool + "/" + pluginID
	expect.NoError(h.T, expect.Value(netns.Create(path))(h.T).Close())
	h.T.Cleanup(func() {
		err := netns.Remove(path)
		expect.That(h.T, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
	})
	expect.Value(r.Setup(context.Background(), pluginID, path, opts...))(h.T)
	expect.NoError(h.T, netns.Remove(h.Pin(pluginID))) // the path was the pin
	h.ChangeRecord(pluginID, func(rec *record.Record) {
		rec.NetNS.Ours, rec.NetNS.Pin = true, ""
		rec.Runtime, rec.Life = "1:1", ""
		if rec.Warm = id == ""; !rec.Warm {
			rec.ContainerID, rec.PluginID = record.ID(id), record.PluginID(pluginID)
		}
	})
	if id != "" {
		rec := expect.Value(h.Records().Load(record.ID(id)))(h.T)
		for _, n := range rec.Attachments { // as a log that survives damage before it
			expect.NoError(h.T, h.Records().Append(rec, record.Entry{IfName: n.IfName, State: n.State}))
		}
		expect.NoError(h.T, h.Records().Delete(record.ID(pluginID)))
	}
	return path
}
