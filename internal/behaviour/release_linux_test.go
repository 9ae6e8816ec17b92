package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestReleaseKeepsConnections: connections survive, and the program can still
// remove a released container, like one that go-cni attached.
func TestReleaseKeepsConnections(t *testing.T) {
	h := newReleasing(t)
	h.ProbeIPv6()
	before := h.Audit()
	r := h.Runtime(h.named())
	c := h.attach(r, "c1", portOf(1))
	var l net.Listener
	expect.NoError(t, h.At(c.path, func() (err error) { l, err = net.Listen("tcp", ":80"); return err }))
	served := testhost.Begin(func() error {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			err = errors.Join(err, conn.Close())
		}
		return err
	})
	conn, err := net.Dial("tcp", testhost.HostPort(c.v4, 80))
	expect.NoError(t, err)
	expect.NoError(t, conn.SetDeadline(time.Now().Add(expect.Patience)))
	echo := func(word string) {
		t.Helper()
		_, err := io.WriteString(conn, word)
		expect.NoError(t, err)
		said := make([]byte, len(word))
		if _, err := io.ReadFull(conn, said); err != nil || string(said) != word {
			t.Fatalf("got %q, %v, want %q", said, err, word)
		}
	}
	echo("before")
	h.wantReleased(r, "c1")
	echo("after")
	expect.NoError(t, errors.Join(conn.Close(), expect.Await(t, "the server", served), l.Close()))
	h.wantReleased(r)
	expect.NoError(t, r.Check(t.Context(), "c1", c.path))
	_, err = r.Setup(t.Context(), "c1", c.path, portOf(1))
	expect.Is(t, err, cni.ErrAlreadyAttached)
	expect.NoError(t, r.Remove(t.Context(), "c1", c.path, portOf(1)))
	h.WantClean(before)
}

// TestReleaseOfContainersThatNeedNoRefusal: an older record does not matter if the
// backends are named. Firewall's backend does not matter if the same one would
// be chosen again.
func TestReleaseOfContainersThatNeedNoRefusal(t *testing.T) {
	aBridge := testhost.Case{Plugins: []string{testhost.BridgeConf(masqNamed + testhost.HostLocal(testhost.V4Range))}}
	for name, tt := range map[string]struct {
		opts  func(h *realHost) []cni.Opt
		setup []cni.NamespaceOpts
		spoil func(h *realHost)
	}{
		"an older record":                    {opts: executables(masqNamed, portmapNamed, firewallNamed), spoil: func(h *realHost) { h.ForgetKinds("c1") }},
		"executables without named backends": {opts: func(h *realHost) []cni.Opt { return []cni.Opt{h.unnamedBackends()} }},
		"firewall with iptables":             {opts: executables(masqNamed, portmapNamed, ``)},
		"no ports, no masquerading":          {opts: executables(``, ``, firewallNamed), setup: []cni.NamespaceOpts{}},
		"arguments for reference plugins":    {opts: executables(masqNamed, portmapNamed, firewallNamed), setup: []cni.NamespaceOpts{cni.WithConfigArgs("labels", "x")}},
		"a list of version 0.3.1": {setup: []cni.NamespaceOpts{}, opts: func(h *realHost) []cni.Opt {
			return []cni.Opt{cni.WithConfListBytes(aBridge.Conf("podnet", "0.3.1", h.Path("ipam")))}
		}},
		"a configuration of version 0.2.0": {setup: []cni.NamespaceOpts{}, opts: func(h *realHost) []cni.Opt {
			return []cni.Opt{cni.WithConf(aBridge.Conf("podnet", "0.2.0", h.Path("ipam")))}
		}},
		"insecure executables": {opts: executables(masqNamed, portmapNamed, firewallNamed), spoil: func(h *realHost) { expect.NoError(h.T, os.Chmod(h.Path("bin"), 0o777)) }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newReleasing(t)
			before := h.Audit()
			if tt.setup == nil {
				tt.setup = []cni.NamespaceOpts{portOf(1)}
			}
			opts := tt.opts(h)
			_, err := h.Runtime(opts...).Setup(t.Context(), "c1", h.Container("c1"), tt.setup...)
			expect.NoError(t, err)
			if tt.spoil != nil {
				tt.spoil(h)
			}
			r := h.Runtime(opts...)
			h.wantReleased(r, "c1")
			expect.NoError(t, r.Remove(t.Context(), "c1", h.Path("netns", "c1"), tt.setup...))
			h.WantClean(before)
		})
	}
}

// TestReleaseWaitsForNoOtherCall: a locked container is refused, and the others
// are released.
func TestReleaseWaitsForNoOtherCall(t *testing.T) {
	h := newReleasing(t)
	r := h.Runtime(h.named())
	for i := range 3 {
		h.attach(r, fmt.Sprint("c", i), portOf(i))
	}
	held, err := lock.Open(h.Path("state", "embedcni", "locks")).Lock(t.Context(), "container/c1")
	expect.NoError(t, err)
	report, err := r.Release(t.Context(), cni.ReleaseOptions{})
	expect.NoError(t, err)
	expect.Same(t, "released", report.Released, []string{"c0", "c2"})
	expect.Is(t, report.Refused["c1"], cni.ErrBusy)
	if len(report.Refused) != 1 || !h.Pinned("c1") {
		t.Errorf("refused %v", report.Refused)
	}
	expect.NoError(t, held.Release())
	h.wantReleased(r, "c1")
}

// TestReleaseBesideOtherCalls: containers come and go while others are
// released.
func TestReleaseBesideOtherCalls(t *testing.T) {
	h := newReleasing(t)
	before := h.Audit()
	r := h.Runtime(h.named())
	const count = 12
	var paths []string
	for i := range count {
		paths = append(paths, h.Container(fmt.Sprint("c", i)))
	}
	host, err := netns.Current()
	expect.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, count)
	for i, path := range paths {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = host.Do(func() error {
				_, err := r.Setup(context.Background(), fmt.Sprint("c", i), path, portOf(i))
				if err == nil && i%2 == 0 {
					err = r.Remove(context.Background(), fmt.Sprint("c", i), path, portOf(i))
				}
				return err
			})
		}()
	}
	finished := testhost.Begin(func() error { wg.Wait(); return nil })
	released := map[string]bool{}
	for over := false; !over; {
		select {
		case <-finished:
			over = true
		default:
		}
		report, err := r.Release(t.Context(), cni.ReleaseOptions{})
		expect.NoError(t, err)
		for _, id := range report.Released {
			released[id] = true
		}
		for id, why := range report.Refused {
			if over || !errors.Is(why, cni.ErrBusy) {
				t.Errorf("%s: %v", id, why)
			}
		}
	}
	expect.NoError(t, errors.Join(append(errs, host.Close())...))
	for i := 1; i < count; i += 2 {
		if id := fmt.Sprint("c", i); !released[id] {
			t.Errorf("%s was not released", id)
		}
		expect.NoError(t, r.Remove(t.Context(), fmt.Sprint("c", i), paths[i], portOf(i)))
	}
	h.WantClean(before)
}

// TestReleaseTouchesNothingOfOtherOwners and refuses a container that two
// owners have attached.
func TestReleaseTouchesNothingOfOtherOwners(t *testing.T) {
	h := newReleasing(t)
	lan := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "macvlan", "master": "up0"}]}`))
	testhost.Uplink(h.RealHost)
	r, other := h.Runtime(h.named()), h.Runtime(h.named(), lan, cni.WithOwner("other"))
	h.attach(other, "theirs", portOf(1), cni.WithNetwork("podnet"))
	shared := h.attach(r, "shared", portOf(2))
	_, err := other.Setup(t.Context(), "shared", shared.path, cni.WithNetwork("lan"))
	expect.NoError(t, err)
	h.wantRefused(r, "shared", nil, "another owner has attached it too; Remove that owner's attachments first")
	report, err := other.Release(t.Context(), cni.ReleaseOptions{DryRun: true})
	expect.NoError(t, err)
	expect.Same(t, "would be released", report.Released, []string{"theirs"})
	if len(report.Refused) != 1 || report.Refused["shared"] == nil {
		t.Errorf("refused: %v", report.Refused)
	}
	expect.NoError(t, other.Remove(t.Context(), "shared", shared.path, cni.WithNetwork("lan")))
	h.wantReleased(r, "shared")
	if !h.Pinned("theirs") {
		t.Error("the other owner's pin is gone")
	}
}

// TestReleaseFromAnotherHostNamespace: go-cni would run the DEL in the
// caller's.
func TestReleaseFromAnotherHostNamespace(t *testing.T) {
	h := newReleasing(t)
	r := h.Runtime(h.named())
	h.attach(r, "c1", portOf(1))
	elsewhere := h.NewNetNS("elsewhere")
	named := h.Runtime(h.named(), cni.WithHostNetNS(h.Path("netns", "host")))
	for name, r := range map[string]*cni.Runtime{"by the thread": r, "whatever WithHostNetNS says": named} {
		expect.NoError(t, elsewhere.Do(func() error {
			report, err := r.Release(t.Context(), cni.ReleaseOptions{})
			if !errors.Is(report.Refused["c1"], cni.ErrHostNetNS) {
				t.Errorf("%s: released %q, refused %v", name, report.Released, report.Refused)
			}
			return err
		}))
	}
	h.wantReleased(named, "c1")
}

// TestReleaseKeptByADescriptor: without mounts, the Runtime that attached a
// container keeps its namespace with a descriptor. No other Runtime can close
// that.
func TestReleaseKeptByADescriptor(t *testing.T) {
	s, r, conf := inhabited(t)
	goCNIsState(s.Host)
	path := s.Container("c1")
	container, err := netns.Open(path)
	expect.NoError(t, err)
	id := container.ID()
	expect.NoError(t, container.Close())
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", path)))
	s.AddLink("c1", "eth0")
	other := s.restarted(conf)
	refuse := func() {
		t.Helper()
		report, err := other.Release(t.Context(), cni.ReleaseOptions{})
		expect.NoError(t, err)
		if why := report.Refused["c1"]; why == nil || !strings.Contains(why.Error(), "the process that attached it lives") {
			t.Errorf("released %q, refused %v", report.Released, report.Refused)
		}
	}
	refuse()
	alive, err := identityOf(os.Getppid())
	expect.NoError(t, err)
	s.ChangeRecord("c1", func(r *record.Record) { r.Runtime, r.Life = alive, "" })
	refuse()
	kept := testhost.OpenAs(t, id)
	report, err := r.Release(t.Context(), cni.ReleaseOptions{})
	expect.NoError(t, err)
	expect.Same(t, "released", report.Released, []string{"c1"})
	expect.Same(t, "descriptors of the namespace", testhost.OpenAs(t, id), kept-1)
}

// identityOf returns a process's identity in records, its number and start
// time. Its name must not contain blanks.
func identityOf(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	return fmt.Sprint(pid, ":", strings.Fields(string(stat))[21]), nil
}

// TestReleaseThatCannotDeleteTheRecord leaves the container as it was.
func TestReleaseThatCannotDeleteTheRecord(t *testing.T) {
	h := newReleasing(t)
	before := h.Audit()
	r := h.Runtime(h.named())
	c := h.attach(r, "c1", portOf(1))
	file := h.RecordFile("c1") + ".json"
	expect.NoError(t, unix.Mount(file, file, "", unix.MS_BIND, "")) // a mount point cannot be deleted
	attached := h.Audit()
	released, err := r.Release(t.Context(), cni.ReleaseOptions{})
	expect.NoError(t, err)
	if why := released.Refused["c1"]; !errors.Is(why, unix.EBUSY) {
		t.Errorf("released %q, refused %v", released.Released, released.Refused)
	}
	h.wantKept("c1")
	h.WantClean(attached)
	expect.NoError(t, unix.Unmount(file, 0))
	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	expect.NoError(t, err)
	if len(report.Reclaimed)+len(report.Removed) > 0 {
		t.Errorf("GC: %+v", report)
	}
	expect.NoError(t, r.Check(t.Context(), "c1", c.path))
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

// TestReleaseThatWasKilled between the pin and the record: the container is
// still recorded, is pinned again, and can be released again.
func TestReleaseThatWasKilled(t *testing.T) {
	h := newReleasing(t)
	r := h.Runtime(h.named())
	h.attach(r, "c1", portOf(1))
	expect.NoError(t, netns.Remove(h.Pin("c1")))
	report, err := h.Runtime(h.named()).Recover(t.Context())
	expect.NoError(t, err)
	expect.Same(t, "adopted", report.Adopted, []string{"c1"})
	h.wantKept("c1")
	h.wantReleased(r, "c1")
}

// TestReleaseFails if it cannot read the state.
func TestReleaseFails(t *testing.T) {
	h := newReleasing(t)
	r := h.Runtime(h.named())
	h.attach(r, "c1", portOf(1))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := r.Release(over, cni.ReleaseOptions{})
	expect.Is(t, err, context.Canceled)
	if len(report.Released) > 0 || !h.Pinned("c1") {
		t.Errorf("released %q when the context was over", report.Released)
	}
	_, err = h.Runtime().Release(t.Context(), cni.ReleaseOptions{})
	expect.Is(t, err, cni.ErrCNINotInitialized)
}
