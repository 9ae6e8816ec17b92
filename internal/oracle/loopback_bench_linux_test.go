package oracle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocni "github.com/containerd/go-cni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// BenchmarkLoopback attaches and detaches the loopback network alternately:
// go-cni with the reference plugin, this library with it, and this library in
// process. Other load affects all alike, so the ratios hold on any machine.
// This library's records are on, below TMPDIR, and synced for the reference plugin. go-cni
// has none, and in a sandbox its cache in /var/lib/cni is in memory.
func BenchmarkLoopback(b *testing.B) {
	theirs, err := gocni.New(gocni.WithPluginDir([]string{testhost.ReferencePlugins(b)}), gocni.WithLoNetwork)
	if err != nil {
		b.Fatal(err)
	}
	state := b.TempDir()
	runtime := func(opts ...cni.Opt) *cni.Runtime {
		return expect.Value(cni.New(append(opts, cni.WithStateDir(state), cni.WithLoNetwork)...))(b)
	}
	onDisk := runtime(cni.WithPluginDir([]string{testhost.ReferencePlugins(b)}), cni.WithoutBuiltinPlugins())
	inProcess := runtime(cni.WithPluginDir([]string{testhost.ReferencePlugins(b)}))
	contestants := []struct {
		name          string
		setup, remove func(ctx context.Context, id, path string) error
		add, del      []time.Duration
	}{
		{name: "go-cni",
			setup:  func(ctx context.Context, id, path string) error { _, err := theirs.Setup(ctx, id, path); return err },
			remove: func(ctx context.Context, id, path string) error { return theirs.Remove(ctx, id, path) }},
		{name: "on-disk",
			setup:  func(ctx context.Context, id, path string) error { _, err := onDisk.Setup(ctx, id, path); return err },
			remove: func(ctx context.Context, id, path string) error { return onDisk.Remove(ctx, id, path) }},
		{name: "in-process",
			setup:  func(ctx context.Context, id, path string) error { _, err := inProcess.Setup(ctx, id, path); return err },
			remove: func(ctx context.Context, id, path string) error { return inProcess.Remove(ctx, id, path) }},
	}
	path := filepath.Join(b.TempDir(), "netns")
	ns := expect.Value(netns.Create(path))(b)
	b.Cleanup(func() {
		if err := errors.Join(netns.Remove(path), ns.Close()); err != nil {
			b.Error(err)
		}
	})
	n := 0
	for b.Loop() {
		for i := range contestants {
			c, id := &contestants[i], fmt.Sprint("c", n)
			n++
			begin := time.Now()
			if err := c.setup(b.Context(), id, path); err != nil {
				b.Fatal(err)
			}
			attached := time.Now()
			if err := c.remove(b.Context(), id, path); err != nil {
				b.Fatal(err)
			}
			c.add = append(c.add, attached.Sub(begin))
			c.del = append(c.del, time.Since(attached))
		}
	}
	for _, c := range contestants {
		b.ReportMetric(median(c.add), c.name+"-add-µs")
		b.ReportMetric(median(c.del), c.name+"-del-µs")
	}
	b.ReportMetric(0, "ns/op") // the sum of all is meaningless
}

// median returns microseconds. A single call that waited for another program's
// disk access does not change it.
func median(times []time.Duration) float64 {
	slices.Sort(times)
	return float64(times[len(times)/2].Nanoseconds()) / 1000
}
