package cni_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
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
		var st unix.Statfs_t
		expect.NoError(t, unix.Statfs(dir, &st))
		if lasting && st.Type == unix.TMPFS_MAGIC {
			t.Skipf("%s is in memory, and no other directory is the test's", dir)
		}
		path := dir + "/pinned"
		isMade := func() bool {
			_, err := os.Lstat(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			return err == nil
		}
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
		_, err := r.Setup(t.Context(), "c1", path, cni.WithNewNetNS())
		expect.NoError(t, err)
		expect.Same(t, "made", isMade(), true)
		expect.Same(t, "synced", synced, true)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		expect.Same(t, "made, after Remove", isMade(), false)
		h.WantClean(before)
	}
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
		_, err := r.Setup(t.Context(), "c1", path, cni.WithNewNetNS())
		expect.Is(t, err, broken)
		h.WantClean(before)
		if _, err := os.Lstat(path); name != "" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
