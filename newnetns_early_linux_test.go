package cni_test

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// TestAPinThatOutlivesAPowerCutIsMadeAfterTheRecord has reached the disk: the power cut
// would leave the file alone. Where it does not, Setup does not wait.
func TestAPinThatOutlivesAPowerCutIsMadeAfterTheRecord(t *testing.T) {
	for _, lasting := range []bool{false, true} {
		h, r := earlyHost(t)
		dir := "/run"
		if lasting {
			dir = h.Dir
		}
		if lasting && inMemory(t, dir) {
			t.Skipf("%s is in memory, and no other directory is the test's", dir)
		}
		path := dir + "/pinned"
		isMade := func() bool { return expect.Exists(t, path) }
		before := h.Audit()
		synced := false
		r.SyncRecordsBy(func(*os.File) error {
			synced = true
			if lasting {
				expect.Same(t, "made while the record is on its way", isMade(), false)
			} else {
				expect.Eventually(t, "the pin while the record is on its way", isMade)
			}
			return nil
		})
		expect.Value(r.Setup(t.Context(), "c1", path, cni.WithNewNetNS()))(t)
		expect.Same(t, "made", isMade(), true)
		expect.Same(t, "synced", synced, true)
		r.SyncRecordsBy((*os.File).Sync) // Remove syncs the release of the address
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		expect.Same(t, "made, after Remove", isMade(), false)
		h.WantClean(before)
	}
}

// inMemory reports whether a directory is in memory, so that a power cut empties it.
func inMemory(t *testing.T, dir string) bool {
	t.Helper()
	var st unix.Statfs_t
	expect.NoError(t, unix.Statfs(dir, &st))
	return st.Type == unix.TMPFS_MAGIC
}

// TestARecordOfANewNetNSThatDoesNotReachTheDisk fails the Setup, which leaves nothing.
func TestARecordOfANewNetNSThatDoesNotReachTheDisk(t *testing.T) {
	for _, name := range []string{"", "pinned"} {
		h, r := earlyHost(t)
		path := name
		if name != "" {
			path = h.Path(name)
		}
		before := h.Audit()
		broken := errors.New("the disk is broken")
		r.SyncRecordsBy(func(*os.File) error { return broken })
		expect.Is(t, expect.Err(r.Setup(t.Context(), "c1", path, cni.WithNewNetNS())), broken)
		h.WantClean(before)
		expect.Same(t, "path", expect.Exists(t, path), false)
	}
}

// TestANamespaceStaysOnRecordIfTheDiskFails in an attempt to attach the container again,
// at each write of a record.
func TestANamespaceStaysOnRecordIfTheDiskFails(t *testing.T) {
	h, r := earlyHost(t)
	before := h.Audit()
	broken := errors.New("the disk is broken")
	syncs := 0
	r.SyncRecordsBy(func(f *os.File) error { return f.Sync() })
	path := expect.Value(r.Setup(t.Context(), "c1", "", cni.WithNewNetNS()))(t).NetNS
	ns := expect.Value(netns.Open(path))(t)
	defer ns.Close() // was only looked at
	attempt := func(failing int) error {
		nettest.Inside(t, ns, func(nl *netlink.Handle) error {
			link, err := nl.LinkByName("eth0")
			if err != nil {
				return nil // an attempt has failed
			}
			return nl.LinkDel(link)
		})
		syncs = 0
		r.SyncRecordsBy(func(f *os.File) error {
			if syncs++; syncs == failing {
				return broken
			}
			return f.Sync()
		})
		_, err := r.Setup(t.Context(), "c1", path)
		return err
	}
	failed := 0
	for n := 1; ; n++ {
		err := attempt(n)
		rec := expect.Value(h.Records().Load("c1"))(t)
		expect.Must(t, rec != nil && rec.NetNS.ID() == ns.ID() && rec.NetNS.Ours, "write %d fails: record %+v of namespace %v", n, rec, ns.ID())
		now := expect.Value(netns.Open(path))(t)
		expect.Same(t, "namespace", now.ID(), ns.ID())
		expect.NoError(t, now.Close())
		if syncs < n {
			expect.NoError(t, err)
			break
		}
		if err != nil {
			failed++
		}
	}
	expect.Same(t, "attempts failed", failed > 0, true)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "path", expect.Exists(t, path), false)
	h.WantClean(before)
}
