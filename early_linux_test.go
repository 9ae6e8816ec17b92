package cni_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/plugin"
)

// slowDisk is one that a record reaches when the test says so.
type slowDisk struct {
	begun chan struct{}
	end   chan error
}

func newSlowDisk(r *cni.Runtime) *slowDisk {
	d := &slowDisk{begun: make(chan struct{}, 1), end: make(chan error, 1)}
	r.SyncRecordsBy(func(*os.File) error {
		d.begun <- struct{}{}
		return <-d.end
	})
	return d
}

// earlyHost has a network whose interface is made by the plugin built in, while
// the record is on its way.
func earlyHost(t *testing.T, opts ...cni.Opt) (*realHost, *cni.Runtime) {
	h := newRealHost(t)
	opts = append(opts, cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.path("netns", "host")), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br-early", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.23.0.0/24"}]]}}]}`, h.path("ipam"))))
	return h, h.runtime(opts...)
}

// TestWhatOutlivesAPowerCutIsMadeBehindTheRecord: while the record has not
// reached the disk there may be interfaces, but no address file, nothing in
// libcni's cache, and no success.
func TestWhatOutlivesAPowerCutIsMadeBehindTheRecord(t *testing.T) {
	h, r := earlyHost(t)
	before := h.audit()
	disk, path := newSlowDisk(r), h.container("c1")
	done := begin(setUp(t.Context(), r, "c1", path))
	await(t, "the sync", disk.begun)
	for end := time.Now().Add(patience); !h.hasPort(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no interface was made while the record was on its way")
		}
	}
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attaching"})
	files := func() (all []string) {
		for _, pattern := range []string{h.path("ipam", "net", "*"), h.path("state", "results", "*")} {
			found, err := filepath.Glob(pattern)
			wantNil(t, err)
			all = append(all, found...)
		}
		return all
	}
	wantSame(t, "files", files(), []string(nil))
	select {
	case err := <-done:
		t.Fatalf("Setup has returned %v before the record had reached the disk", err)
	default:
	}
	disk.end <- nil
	wantNil(t, await(t, "Setup", done))
	wantSame(t, "files", len(files()), 4) // the address, the last one, the lock, the cached result
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	h.wantClean(before)
}

// hasPort tells whether the host has an end of a pair.
func (h *realHost) hasPort() bool {
	var ports []string
	h.inside(h.path("netns", "host"), func() (err error) {
		ports, err = filepath.Glob("/proc/sys/net/ipv4/conf/veth*")
		return err
	})
	return len(ports) > 0
}

// TestARecordThatDoesNotReachTheDisk fails the Setup, which leaves nothing.
func TestARecordThatDoesNotReachTheDisk(t *testing.T) {
	h, r := earlyHost(t)
	before := h.audit()
	broken := errors.New("the disk is broken")
	r.SyncRecordsBy(func(*os.File) error { return broken })
	_, err := r.Setup(t.Context(), "c1", h.container("c1"))
	wantIs(t, err, broken)
	wantSame(t, "on record", recorded(t, r), []string{})
	h.wantClean(before)
}

// TestWhoMayWriteFilesWaitsForTheRecord: a plugin of the caller's, whatever it is
// called, and wherever it stands.
func TestWhoMayWriteFilesWaitsForTheRecord(t *testing.T) {
	s := newStage(t)
	for _, list := range [][]string{{"own"}, {"own", "loopback"}, {"loopback", "own"}} {
		var synced bool
		own := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error {
			if !synced {
				return errors.New("runs before the record has reached the disk")
			}
			return nil
		}}}
		r := s.runtime(cni.WithPlugin("own", own), cni.WithBuiltinPlugins(), listOfTypes("net", list...))
		r.SyncRecordsBy(func(*os.File) error {
			if list[0] != "own" { // which the record does not set out with
				awaited(t)
			}
			synced = true
			return nil
		})
		_, err := r.Setup(t.Context(), "c1", s.container("c1"))
		wantNil(t, err)
		wantNil(t, r.Remove(t.Context(), "c1", ""))
		s.forget("c1")
	}
}

// awaited waits until somebody waits for a record.
func awaited(t *testing.T) {
	stacks := make([]byte, 16<<20)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("embedcni/cni/internal/record.(*Pending).Wait(")) {
			return
		}
	}
	t.Error("nobody waits for the record")
}

// TestAPoolsContainerIsOnRecordUntilTheOtherRecordIs: one of the two survives a
// power cut at any moment, and only one is listed.
func TestAPoolsContainerIsOnRecordUntilTheOtherRecordIs(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithOwner("tester"), cni.WithBuiltinPlugins(),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "loopback"}]}`)))
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	wantNil(t, err)
	warm := s.wantFull(r, p, 1)[0]
	disk := &slowDisk{begun: make(chan struct{}, 8), end: make(chan error, 8)}
	r.SyncRecordsBy(func(*os.File) error {
		disk.begun <- struct{}{}
		return <-disk.end
	})
	_, _, err = p.Setup(t.Context(), "c1")
	wantNil(t, err) // without having waited
	there := func(id string) bool {
		_, err := os.Lstat(s.recordFile(id) + ".json")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	wantSame(t, "both are on record", []bool{there(warm), there("c1")}, []bool{true, true})
	listed, err := r.Attachments()
	wantNil(t, err)
	for _, a := range listed {
		if a.ContainerID == warm {
			t.Errorf("%s is listed: %+v", warm, a)
		}
	}
	close(disk.end)
	for end := time.Now().Add(patience); there(warm); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the record of the container as it was made ahead of time stays")
		}
	}
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantNil(t, p.Close())
	wantSame(t, "on record", recorded(t, r), []string{})
}
