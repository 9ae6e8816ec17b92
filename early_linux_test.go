package cni_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// slowDisk delays all that is synced until the test closes end.
type slowDisk struct{ begun, end chan struct{} }

func newSlowDisk(r *cni.Runtime) *slowDisk {
	d := &slowDisk{make(chan struct{}, 1), make(chan struct{})}
	r.SyncRecordsBy(func(*os.File) error {
		select {
		case d.begun <- struct{}{}:
		default: // a later file
		}
		<-d.end
		return nil
	})
	return d
}

// earlyHost has a network whose built-in plugin makes the interface while the
// record is being synced.
func earlyHost(t *testing.T, opts ...cni.Opt) (*realHost, *cni.Runtime) {
	h := newRealHost(t)
	opts = append(opts, cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br-early", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.23.0.0/24"}]]}}]}`, h.Path("ipam"))))
	return h, h.Runtime(opts...)
}

// TestDurableStateIsMadeAfterTheRecord: before the record has reached
// the disk there may be interfaces, but no address file, no entry in libcni's
// cache, and no success.
func TestDurableStateIsMadeAfterTheRecord(t *testing.T) {
	h, r := earlyHost(t)
	before := h.Audit()
	disk, path := newSlowDisk(r), h.Container("c1")
	done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
	expect.Await(t, "the sync", disk.begun)
	expect.Eventually(t, "an interface while the record is on its way", h.hasPort)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attaching"})
	files := func() (all []string) {
		for _, pattern := range []string{h.Path("ipam", "net", "*"), h.Path("state", "results", "*")} {
			all = append(all, expect.Value(filepath.Glob(pattern))(t)...)
		}
		return all
	}
	expect.Same(t, "files", files(), []string(nil))
	select {
	case err := <-done:
		t.Fatalf("Setup has returned %v before the record had reached the disk", err)
	default:
	}
	close(disk.end)
	expect.NoError(t, expect.Await(t, "Setup", done))
	expect.Same(t, "files", len(files()), 4) // the address, the last address, the lock, the cached result
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

// onDisk returns a runtime with the reference plugins as executables, and a bridge with
// that IPAM.
func onDisk(t *testing.T, ipam string) (*realHost, *cni.Runtime) {
	h := newRealHost(t)
	return h, h.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br-early", "ipam": %s}, {"type": "firewall", "backend": "iptables"}]}`, ipam)))
}

// TestExecutablesThatWriteNoFileDoNotWaitForTheDisk: a slow sync of the record does not
// delay an ADD of which a power cut leaves nothing.
func TestExecutablesThatWriteNoFileDoNotWaitForTheDisk(t *testing.T) {
	h, r := onDisk(t, `{"type": "static", "addresses": [{"address": "10.23.0.2/24"}]}`)
	before := h.Audit()
	disk, path := newSlowDisk(r), h.Container("c1") // which nobody releases before the end
	done := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", path))
	expect.NoError(t, expect.Await(t, "Setup with a disk that never answers", done))
	close(disk.end)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

// hasPort reports whether the host has an end of a pair.
func (h *realHost) hasPort() bool {
	var ports []string
	h.Inside(h.Path("netns", "host"), func() (err error) {
		ports, err = filepath.Glob("/proc/sys/net/ipv4/conf/veth*")
		return err
	})
	return len(ports) > 0
}

// TestARecordThatDoesNotReachTheDisk fails the Setup, which leaves nothing
// behind.
func TestARecordThatDoesNotReachTheDisk(t *testing.T) {
	h, r := earlyHost(t)
	before := h.Audit()
	broken := errors.New("the disk is broken")
	r.SyncRecordsBy(func(*os.File) error { return broken })
	expect.Is(t, expect.Err(r.Setup(t.Context(), "c1", h.Container("c1"))), broken)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	h.WantClean(before)
}

// TestPluginsThatMayWriteFilesWaitForTheRecord: a caller's plugin always waits,
// whatever its name or place in the chain.
func TestPluginsThatMayWriteFilesWaitForTheRecord(t *testing.T) {
	s := testhost.NewStage(t)
	for _, list := range [][]string{{"own"}, {"own", "loopback"}, {"loopback", "own"}} {
		var synced bool
		own := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error {
			if !synced {
				return errors.New("runs before the record has reached the disk")
			}
			return nil
		}}}
		r := s.Runtime(cni.WithPlugin("own", own), cni.WithBuiltinPlugins(), testhost.ListOfTypes("net", list...))
		r.SyncRecordsBy(func(*os.File) error {
			if list[0] != "own" { // not recorded at the start
				awaited(t)
			}
			synced = true
			return nil
		})
		expect.Value(r.Setup(t.Context(), "c1", s.Container("c1")))(t)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		s.RemoveNetNS("c1")
	}
}

// awaited waits until a plugin waits for a record.
func awaited(t *testing.T) {
	t.Helper()
	stacks := make([]byte, 16<<20)
	expect.Eventually(t, "a plugin that waits for the record", func() bool {
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("embedcni/cni/internal/store/record.(*Pending).Wait("))
	})
}

// TestARecordOfPluginsThatWriteNoFileIsNotSynced: a power cut leaves nothing of them, such
// as lo. Any other record is.
func TestARecordOfPluginsThatWriteNoFileIsNotSynced(t *testing.T) {
	pods := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "loopback"}, {"type": "tuning"}]}`))
	for name, tt := range map[string]struct {
		load []cni.Opt
		opts []cni.NamespaceOpts
		want int
	}{
		"lo alone":                         {[]cni.Opt{cni.WithLoNetwork}, nil, 0},
		"lo alone, selected":               {[]cni.Opt{cni.WithLoNetwork, pods}, []cni.NamespaceOpts{cni.WithNetwork("cni-loopback")}, 0},
		"in a new namespace":               {[]cni.Opt{cni.WithLoNetwork}, []cni.NamespaceOpts{cni.WithNewNetNS()}, 0},
		"with the caller's values":         {[]cni.Opt{cni.WithLoNetwork}, []cni.NamespaceOpts{cni.WithMetadata(map[string]string{"pod": "a"})}, 1},
		"lo and another network":           {[]cni.Opt{cni.WithLoNetwork, pods}, nil, 1},
		"another network, selected":        {[]cni.Opt{cni.WithLoNetwork, pods}, []cni.NamespaceOpts{cni.WithNetwork("pods")}, 1},
		"a plugin of the caller's":         {[]cni.Opt{cni.WithLoNetwork, cni.WithPlugin("loopback", testhost.Idle{})}, nil, 1},
		"a configuration of the caller's":  {[]cni.Opt{cni.WithBuiltinPlugins(), testhost.ListOfTypes("net", "loopback")}, nil, 0},
		"the same, with another plugin":    {[]cni.Opt{cni.WithBuiltinPlugins(), testhost.ListOfTypes("net", "loopback", "tuning")}, nil, 1},
		"at a path that outlives the boot": {[]cni.Opt{cni.WithLoNetwork}, []cni.NamespaceOpts{cni.WithNewNetNS()}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := testhost.NewStage(t)
			s.Plugin(scripted.Script{}, "loopback")
			before := s.Audit()
			r := s.Runtime(tt.load...)
			synced := 0
			r.SyncRecordsBy(func(f *os.File) error { synced++; return f.Sync() })
			path := ""
			switch {
			case tt.want < 0: // in memory, nothing outlives it
				path, tt.want = s.Path("made"), 1
				if inMemory(t, s.Dir) {
					tt.want = 0
				}
			case name != "in a new namespace":
				path = s.Container("c1")
				before = s.Audit()
			}
			expect.Value(r.Setup(t.Context(), "c1", path, tt.opts...))(t)
			expect.Same(t, "syncs", synced, tt.want)
			rec, err := s.Records().Load("c1")
			expect.That(t, rec != nil && err == nil && rec.WasAttached(), "record %+v, %v", rec, err)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			s.WantClean(before)
		})
	}
}

// TestLoIsNotCached: no DEL needs its result. The record has the result. A list of the caller's is cached as by go-cni.
func TestLoIsNotCached(t *testing.T) {
	for name, tt := range map[string]struct {
		load   []cni.Opt
		cached int
	}{
		"WithLoNetwork":             {[]cni.Opt{cni.WithLoNetwork}, 0},
		"a list of the caller's":    {[]cni.Opt{cni.WithBuiltinPlugins(), testhost.ListOfTypes("net", "loopback")}, 1},
		"lo beside another network": {[]cni.Opt{cni.WithLoNetwork, cni.WithBuiltinPlugins(), testhost.ListOfTypes("net", "loopback", "bandwidth")}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := testhost.NewStage(t)
			s.Plugin(scripted.Script{}, "loopback")
			r := s.Runtime(tt.load...)
			path := s.Container("c1")
			expect.Value(r.Setup(t.Context(), "c1", path))(t)
			expect.Same(t, "cached", len(expect.Value(filepath.Glob(s.Path("state", "results/*")))(t)), tt.cached)
			rec := expect.Value(s.Records().Load("c1"))(t)
			for _, n := range rec.Attachments {
				expect.Same(t, "state of "+n.IfName, n.State, record.Added)
				expect.That(t, len(n.Result) != 0, "%s has no result on record", n.IfName)
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
		})
	}
}

// TestARecordThatReplacesOneOfLoAloneIsSynced, and so is one of lo that replaces another:
// a power cut must not leave a torn record of attachments that may outlive it.
func TestARecordThatReplacesOneOfLoAloneIsSynced(t *testing.T) {
	for _, order := range [][]string{{"cni-loopback", "own"}, {"own", "cni-loopback"}} {
		s := testhost.NewStage(t)
		r := s.Runtime(cni.WithLoNetwork, testhost.ListOfTypes("own", "loopback", "tuning"), cni.WithBuiltinPlugins())
		synced := 0
		r.SyncRecordsBy(func(f *os.File) error { synced++; return f.Sync() })
		path := s.Container("c1")
		var counts []int
		for _, network := range order {
			expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path, cni.WithNetwork(network))())
			counts = append(counts, synced)
		}
		want := []int{0, 1}
		if order[0] == "own" {
			want = []int{1, 2}
		}
		expect.Same(t, fmt.Sprint("syncs after ", order), counts, want)
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	}
}

// TestFault_F39_AReleaseIsOnTheDiskBeforeTheRecordGoes: after any power cut a record names
// the owner of each address.
func TestFault_F39_AReleaseIsOnTheDiskBeforeTheRecordGoes(t *testing.T) {
	h, r := earlyHost(t)
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	begun, end := make(chan string, 1), make(chan error, 1)
	r.SyncRecordsBy(func(f *os.File) error {
		begun <- f.Name()
		return <-end
	})
	done := testhost.Begin(func() error { return r.Remove(t.Context(), "c1", "") })
	found := expect.Value(filepath.Glob(filepath.Join(expect.Await(t, "the sync", begun), "*.*.*.*")))(t)
	expect.Same(t, "addresses when it began", found, []string(nil))
	expect.Eventually(t, "a DEL while the release is on its way", func() bool { return !h.hasPort() })
	expect.That(t, expect.Value(h.Records().Load("c1"))(t) != nil, "the record is gone, and the release is not on the disk")
	end <- errors.New("no space") // not a reason to fail
	expect.NoError(t, expect.Await(t, "Remove", done))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}
