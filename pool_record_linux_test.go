package cni_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// pooledWith is a network of which a pool makes the first plugin's part, and not the last's.
func pooledWith(last string) cni.Opt {
	return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "loopback"}, {"type": %q, "capabilities": {"bandwidth": true}}]}`, last))
}

// TestARecordOfAPoolsContainerIsSyncedWhenItIsWhole, and sooner if a plugin may write files,
// which waits for it.
func TestARecordOfAPoolsContainerIsSyncedWhenItIsWhole(t *testing.T) {
	for last, want := range map[string]record.State{"bandwidth": record.Added, "own": record.Planned} {
		s := testhost.NewStage(t)
		var synced atomic.Bool
		own := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error {
			if !synced.Load() {
				return errors.New("runs before the record has reached the disk")
			}
			return nil
		}}}
		r := s.Runtime(cni.WithOwner("tester"), cni.WithBuiltinPlugins(), cni.WithPlugin("own", own), pooledWith(last))
		p, err := r.NewPool(cni.PoolOptions{Size: 1})
		expect.NoError(t, err)
		s.WantFull(r, p, 1)
		states := make(chan record.State, 1)
		r.SyncRecordsBy(func(*os.File) error {
			if synced.Swap(true) {
				return nil // of another container that the pool makes
			}
			rec, err := s.Records().Load("c1")
			if err == nil {
				states <- rec.Attachments[0].State
			}
			return err
		})
		_, _, err = p.Setup(t.Context(), "c1")
		expect.NoError(t, err)
		expect.Same(t, "state when synced, before "+last, expect.Await(t, "the sync", states), want)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		expect.NoError(t, p.Close())
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	}
}

// TestAPowerCutBeforeAPoolsRecordIsSynced leaves the record of the container as it was made
// ahead of time, whatever is left of the other, and Recover removes all of it.
func TestAPowerCutBeforeAPoolsRecordIsSynced(t *testing.T) {
	for name, cut := range map[string]func(file string, whole []byte) error{
		"it is not there": func(file string, _ []byte) error { return os.Remove(file) },
		"it is empty":     func(file string, _ []byte) error { return os.WriteFile(file, nil, 0o600) },
		"it is zeros":     func(file string, whole []byte) error { return os.WriteFile(file, make([]byte, len(whole)), 0o600) },
		"it is torn":      func(file string, whole []byte) error { return os.WriteFile(file, whole[:len(whole)/4], 0o600) },
		"its log is not there": func(file string, whole []byte) error {
			return os.WriteFile(file, whole[:bytes.IndexByte(whole, '\n')], 0o600)
		},
		"it is whole": func(string, []byte) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := testhost.NewStage(t)
			before := s.Audit()
			opts := []cni.Opt{cni.WithOwner("tester"), cni.WithBuiltinPlugins(), pooledWith("bandwidth")}
			r := s.Runtime(opts...)
			p, err := r.NewPool(cni.PoolOptions{Size: 1})
			expect.NoError(t, err)
			warm := s.WantFull(r, p, 1)[0]
			r.SyncRecordsBy(func(*os.File) error { return errors.New("the power is cut") })
			path, _, err := p.Setup(t.Context(), "c1")
			expect.NoError(t, err)
			expect.NoError(t, p.Close()) // the end of the process, with its next container

			// The machine starts with what is left.
			for _, id := range []string{warm, "c1"} {
				s.ChangeRecord(id, func(rec *record.Record) { rec.Boot = "another boot" })
			}
			file := s.RecordFile("c1") + ".json"
			whole, err := os.ReadFile(file)
			expect.NoError(t, err)
			expect.NoError(t, cut(file, whole))
			expect.NoError(t, netns.Remove(path))
			again := s.Runtime(opts...)
			_, err = again.Recover(t.Context())
			expect.NoError(t, err)
			// A record that names nobody goes first; it might have been another's that has
			// taken the container.
			_, err = again.Recover(t.Context())
			expect.NoError(t, err)
			expect.Same(t, "on record", testhost.Recorded(t, again), []string{})
			s.WantClean(before)
		})
	}
}

// TestTheCacheNamesNoNetworkBeforeTheRecordDoes: after a power cut the record of the pool's
// container knows only the networks that were attached ahead.
func TestTheCacheNamesNoNetworkBeforeTheRecordDoes(t *testing.T) {
	s := testhost.NewStage(t)
	late := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "late", "plugins": [
		{"type": "loopback", "capabilities": {"bandwidth": true}}, {"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`))
	r := s.Runtime(cni.WithOwner("tester"), cni.WithBuiltinPlugins(), pooledWith("bandwidth"), late)
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	expect.NoError(t, err)
	s.WantFull(r, p, 1)
	isLate := func(name string) bool { return strings.HasPrefix(name, "late-") }
	cached := make(chan bool, 100)
	r.SyncRecordsBy(func(*os.File) error {
		cached <- slices.ContainsFunc(s.Cached(), isLate)
		return nil
	})
	_, result, err := p.Setup(t.Context(), "c1")
	expect.NoError(t, err)
	expect.Same(t, "cached before the sync", expect.Await(t, "the sync", cached), false)
	expect.Same(t, "cached", slices.ContainsFunc(s.Cached(), isLate), true)
	if result == nil {
		t.Error("no result")
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""), p.Close())
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}
