package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// deadline is M7: a plugin hangs, its child holds its output open, and the
// context ends.
func (b *board) deadline(t *testing.T) {
	limit := 300 * time.Millisecond
	if *costRounds < strictRounds { // an everyday run, beside other tests
		limit = 2 * time.Second
	}
	s := b.subject(t, 7<<32, 1)
	var worst time.Duration
	survivors := 0
	for i, at := range []string{"before", "after"} {
		for j, plugin := range chain() {
			id := fmt.Sprintf("m7-%d-%d", i, j)
			path := s.container(id)
			s.spoil(plugin, fault{Verb: "ADD", Hang: true, Fork: true, At: at})
			// The time to undo a healthy ADD does not count as the plugin's
			// overshoot.
			worst = max(worst, s.overshoot(id, path, limit))
			survivors += len(processesOf(t, id))
			s.remove(fmt.Sprintf("%s: %s hangs %s the real one", id, plugin, at), id)
		}
	}
	b.figure(t, "M7", "time past a deadline", fmt.Sprintf("%v, %d survivors", worst.Round(time.Millisecond), survivors),
		"500ms, 0 survivors", (worst <= 500*time.Millisecond || *costRounds < strictRounds) && survivors == 0)
}

// overshoot returns the time that the plugin's call continues after the end of
// the context. The roll-back follows it.
func (s *subject) overshoot(id, path string, limit time.Duration) time.Duration {
	s.t.Helper()
	var mu sync.Mutex
	var ended time.Time
	set := s.settings(1)
	r := s.host.runtime(set)
	expect.NoError(s.t, r.Load(cni.WithObserver(func(_ context.Context, e cni.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Operation == "ADD" && e.Err != nil {
			ended = time.Now()
		}
	}), cni.WithConfListBytes(set.Confs[0])))
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	end, _ := ctx.Deadline()
	expect.Is(s.t, expect.Err(r.Setup(ctx, id, path, ports(10000)...)), context.DeadlineExceeded)
	mu.Lock()
	defer mu.Unlock()
	expect.That(s.t, !ended.IsZero(), "%s: no plugin ran at the deadline", id)
	return ended.Sub(end)
}

// unrelated is M8: calls that are unrelated to a hanging plugin.
func (b *board) unrelated(t *testing.T) {
	s := b.subject(t, 8<<32, 1)
	path := s.container("m8")
	s.spoil("bridge", fault{Verb: "ADD", Hang: true, At: "before"})
	ctx, cancel := context.WithCancel(context.Background())
	set := s.settings(1)
	r := s.host.runtime(set)
	done := make(chan error, 1)
	go func() {
		_, err := r.Setup(ctx, "m8", path)
		done <- err
	}()
	for len(processesOf(t, "m8")) == 0 { // until the plugin runs; each check reads all of /proc
		if len(done) > 0 {
			t.Fatal("Setup did not wait for a plugin that hangs: ", <-done)
		}
	}
	var took []time.Duration
	for range 50 {
		start := time.Now()
		expect.NoError(t, r.Status())
		expect.Same(t, "loaded networks", len(r.GetConfig().Networks), 1)
		expect.NoError(t, r.Load(cni.WithConfListBytes(set.Confs[0])))
		took = append(took, time.Since(start))
	}
	cancel()
	expect.Fails(t, "Setup succeeded with a plugin that hangs", <-done)
	s.remove("m8", "m8")
	worst := median(took)
	b.figure(t, "M8", "unrelated calls behind a hung plugin", fmt.Sprint(worst.Round(time.Microsecond), " (three calls, median of 50)"),
		"5ms", worst < 5*time.Millisecond || *costRounds < strictRounds)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// crowd is M9: many concurrent calls on a cold host.
func (b *board) crowd(t *testing.T) {
	h := newHost(t)
	r := h.runtime(h.settings(1))
	before := h.audit()
	var ids []string
	for i := range *crowdSize {
		ids = append(ids, fmt.Sprintf("m9-%d", i))
		h.container(ids[i])
	}
	all := func(f func(i int, id string) error) (failures int) {
		errs := make([]error, len(ids))
		var wg sync.WaitGroup
		for i, id := range ids {
			wg.Go(func() {
				errs[i] = f(i, id)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				t.Error(err)
				failures++
			}
		}
		return failures
	}
	failures := all(func(i int, id string) error {
		_, err := r.Setup(context.Background(), id, h.netns(id), ports(int32(10000+i))...)
		return err
	})
	made, _ := audit.Diff(before, h.everything())
	twice := duplicates(t, made)
	failures += all(func(_ int, id string) error { return r.Remove(context.Background(), id, h.netns(id)) })
	h.letGo()
	h.wantSame(before)
	b.figure(t, "M9", fmt.Sprintf("%d containers at once, cold", len(ids)),
		fmt.Sprintf("%d failures, %d duplicates", failures, twice), "0 and 0", failures+twice == 0)
}

// everything is the audit including shared lines.
func (h *host) everything() audit.Lines {
	h.t.Helper()
	lines := expect.Value(audit.Snapshot(context.Background(), audit.Options{StateDirs: []string{h.path("ipam")}}))(h.t)
	return lines.Without(func(l string) bool { return l[:2] != "ip" && l[:3] != "nft" && l[:4] != "file" })
}

func duplicates(t *testing.T, lines audit.Lines) (n int) {
	seen := map[string]bool{}
	for _, l := range lines {
		if seen[l] {
			t.Log("twice:", l)
			n++
		}
		seen[l] = true
	}
	return n
}

// wantSame checks that no container has left anything.
func (h *host) wantSame(before audit.Lines) {
	h.t.Helper()
	added, gone := audit.Diff(before, h.audit())
	expect.Unchanged(h.t, "left", added, gone)
	// Records, including unfinished ones. The owner's ledger stays.
	expect.Empty(h.t, "records", expect.Value(filepath.Glob(h.path("state", "embedcni", "attachments", "*.json*")))(h.t))
	expect.Value(os.Stat(h.path("state")))(h.t)
}

// strictRounds is the number of rounds from which a median above the target
// fails the test. With fewer, as in everyday runs, other tests may keep the
// disk busy.
const strictRounds = 1000

// cost is M13: the time that an ADD of three plugins spends on its record, on
// disk and in memory. It searches for an earlier record, writes the base, pins
// the namespace, and appends three results and the end.
func (b *board) cost(t *testing.T) {
	h := newHost(t)
	path := h.container("m13")
	disk, add := h.costIn(path, h.path("cost"))
	memory := expect.Value(os.MkdirTemp("/run", "cost"))(t)
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll(memory)) })
	_, inMemory := h.costIn(path, memory)
	b.figure(t, "M13", "cost of the record per ADD, median",
		fmt.Sprintf("%v (%s), %v (tmpfs)", add.Round(time.Microsecond), disk, inMemory.Round(time.Microsecond)),
		"2ms", add <= 2*time.Millisecond || *costRounds < strictRounds)
}

func (h *host) costIn(path, dir string) (fsType string, add time.Duration) {
	h.t.Helper()
	store := record.Open(dir)
	var took []time.Duration
	for i := range *costRounds {
		id := fmt.Sprintf("m13-%d", i)
		start := time.Now()
		h.payAdd(store, id, path)
		took = append(took, time.Since(start))
		expect.NoError(h.t, netns.Remove(filepath.Join(dir, "netns", id)))
		expect.NoError(h.t, store.Delete(record.ID(id)))
	}
	var st unix.Statfs_t
	expect.NoError(h.t, unix.Statfs(dir, &st))
	return fsName(st.Type), median(took)
}

func (h *host) payAdd(store *record.Store, id, path string) {
	h.t.Helper()
	if earlier, err := store.Load(record.ID(id)); earlier != nil || err != nil {
		h.t.Fatal(earlier, err)
	}
	bootID := expect.Value(proc.BootID())(h.t)
	self := expect.Value(proc.Self())(h.t)
	ns := expect.Value(netns.Open(path))(h.t)
	pin := filepath.Join(store.Dir(), "netns", id)
	r := &record.Record{ContainerID: record.ID(id), Owner: "faults", Boot: bootID, Runtime: self, Since: time.Now(),
		NetNS:       record.NetNS{Path: path, Dev: ns.ID().Dev, Ino: ns.ID().Ino, Pin: pin},
		Attachments: []record.Attachment{{Network: "net0", IfName: "eth0", Config: h.network(0)}}}
	expect.NoError(h.t, store.Begin(r))
	expect.NoError(h.t, netns.Pin(ns, pin))
	expect.NoError(h.t, ns.Close())
	result := json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"br0","mac":"0a:58:0a:46:00:01"},` +
		`{"name":"veth0123abcd","mac":"0a:58:0a:46:00:02"},{"name":"eth0","mac":"0a:58:0a:46:00:03","sandbox":"/run/netns/x"}],` +
		`"ips":[{"address":"10.70.0.2/16","gateway":"10.70.0.1","interface":2}],"dns":{}}`)
	for range chain() {
		expect.NoError(h.t, store.Append(r, record.Entry{IfName: "eth0", Result: result}))
	}
	expect.NoError(h.t, store.Append(r, record.Entry{IfName: "eth0", State: record.Added}))
}

func fsName(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	}
	return fmt.Sprintf("file system %#x", magic)
}
