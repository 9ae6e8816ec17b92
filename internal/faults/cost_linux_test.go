package faults_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

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
