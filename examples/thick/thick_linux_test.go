package thick

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/refplugins"
)

// TestEveryVersion: libcni executes the shim for each verb, and packets get through on a
// network of plugins in the daemon's process, and on one of executables.
func TestEveryVersion(t *testing.T) {
	leavesNothing(t)
	d, r, ctx := start(t), newRuntime(t), t.Context()
	for i, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c, conf := newContainer(t, "c"+version, 8080+i), node(t, version)
		expect.Value(r.ValidateNetworkList(ctx, conf))(t)
		r.add(t, version, c)
		c.wantTraffic(t)
		if version != "0.3.1" {
			expect.NoError(t, r.CheckNetworkList(ctx, conf, c.RuntimeConf))
		}
		if version == "1.1.0" {
			expect.NoError(t, r.GetStatusNetworkList(ctx, conf))
		}
		for range 2 { // a DEL is repeated
			expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
		}
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
	log := d.rest(t)
	for typ, kind := range map[string]string{known.Bridge: `"built in"`, known.Portmap: `"built in"`, known.PTP: "executable"} {
		for operation, calls := range map[string]int{"ADD": 4, "CHECK": 3} {
			ran := regexp.MustCompile("operation="+operation+" type="+typ+` kind=("[^"]*"|\S*)`).FindAllStringSubmatch(log, -1)
			if len(ran) != calls || slices.ContainsFunc(ran, func(found []string) bool { return found[1] != kind }) {
				t.Errorf("%s of %s ran as %q, want %d times %s", operation, typ, ran, calls, kind)
			}
		}
	}
}

// TestGCIsForPairs of a container and an interface: another interface of the same
// container is not valid by it, and goes or stays on its own.
func TestGCIsForPairs(t *testing.T) {
	leavesNothing(t)
	d, r, ctx := start(t), newRuntime(t), t.Context()
	c, other, conf := newContainer(t, "c", 8080), newContainer(t, "other", 8081), node(t, "1.1.0")
	r.add(t, "1.1.0", c)
	r.add(t, "1.1.0", other)
	second := list(t, "1.1.0", "second", fmt.Sprintf(`, "delegates": [{"type": %q, "bridge": "thick1", "isGateway": true, "ipam":
		{"type": %q, "ranges": [[{"subnet": "10.66.0.0/24"}]]}}]`, known.Bridge, known.HostLocal))
	more := &libcni.RuntimeConf{ContainerID: c.ContainerID, NetNS: c.NetNS, IfName: "eth1"}
	expect.Value(r.AddNetworkList(ctx, second, more))(t)
	fromSecond := dial(t, c.address(t, "eth1")+":80", c.ContainerID)
	wantOthers := func() {
		t.Helper()
		fromSecond.wantAnswer(t)
		other.wantTraffic(t)
	}

	// A libcni with no cached attachments repeats no DEL of its own. Without a list of what
	// is valid, as cnitool asks, nothing is removed.
	collector := newRuntime(t)
	said := (*types.Error)(nil)
	if err := collector.GCNetworkList(ctx, conf, nil); !errors.As(err, &said) || said.Code != types.ErrInvalidNetworkConfig {
		t.Errorf("a GC without a list: %v", err)
	}
	c.wantTraffic(t)
	wantOthers()
	valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: c.ContainerID, IfName: "eth1"}, {ContainerID: other.ContainerID, IfName: "eth0"},
	}}
	expect.NoError(t, collector.GCNetworkList(ctx, conf, valid))
	expect.Same(t, "the container whose other interface is valid", c.interfaces(t), []string{"lo", "eth1"})
	wantOthers()

	for _, del := range []struct {
		from *libcni.NetworkConfigList
		c    *libcni.RuntimeConf
	}{{conf, c.RuntimeConf}, {second, more}, {conf, other.RuntimeConf}} {
		expect.NoError(t, r.DelNetworkList(ctx, del.from, del.c))
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestADDsWaitForTheReadinessFile, and STATUS says why.
func TestADDsWaitForTheReadinessFile(t *testing.T) {
	leavesNothing(t)
	file := filepath.Join(t.TempDir(), "ready")
	d, r, ctx, conf := start(t, "-ready", file), newRuntime(t), t.Context(), node(t, "1.1.0")
	d.until(t, "serving")
	said := (*types.Error)(nil)
	if err := r.GetStatusNetworkList(ctx, conf); !errors.As(err, &said) || said.Code != 50 {
		t.Errorf("STATUS: %v", err)
	}
	c := newContainer(t, "c", 8080)
	short, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	if _, err := r.AddNetworkList(short, conf, c.RuntimeConf); err == nil {
		t.Error("ADD has not waited")
	}
	expect.Same(t, "interfaces", c.interfaces(t), []string{"lo"})
	added := make(chan error, 1)
	go func() {
		_, err := r.AddNetworkList(ctx, conf, c.RuntimeConf)
		added <- err
	}()
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	expect.NoError(t, expect.Await(t, "ADD", added), r.GetStatusNetworkList(ctx, conf))
	c.wantTraffic(t)
	expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestAShutdownLetsCallsEnd: the ADD under way succeeds, DEL is served, and another ADD
// waits for the next daemon.
func TestAShutdownLetsCallsEnd(t *testing.T) {
	leavesNothing(t)
	dir := t.TempDir()
	gate, plugin := filepath.Join(dir, "gate"), filepath.Join(dir, known.PTP)
	reference := filepath.Join(expect.Value(refplugins.Dir(t.Context(), os.Stderr))(t), known.PTP)
	script := fmt.Sprintf("#!/bin/sh\n[ $CNI_COMMAND != ADD ] || read _ <%s\nCNI_PATH=%s exec %s\n", gate, filepath.Dir(reference), reference)
	expect.NoError(t, unix.Mkfifo(gate, 0o600), os.WriteFile(plugin, []byte(script), 0o700))
	d, r, ctx, conf := start(t, "-plugins", dir), newRuntime(t), t.Context(), node(t, "1.1.0")
	first, second := newContainer(t, "first", 8081), newContainer(t, "second", 8082)
	add := func(c *container) <-chan error {
		added := make(chan error, 1)
		go func() {
			_, err := r.AddNetworkList(ctx, conf, c.RuntimeConf)
			added <- err
		}()
		return added
	}
	firstAdded, opened := add(first), make(chan *os.File, 1)
	go func() {
		w, err := os.OpenFile(gate, os.O_WRONLY, 0) // returns when the plugin reads
		if err != nil {
			t.Error(err)
		}
		opened <- w
	}()
	release := expect.Await(t, "the plugin", opened)
	expect.NoError(t, d.Process.Signal(unix.SIGTERM))
	expect.Eventually(t, "the shutdown", func() bool { return r.GetStatusNetworkList(ctx, conf) != nil })
	secondAdded := add(second)
	expect.NoError(t, r.DelNetworkList(ctx, conf, second.RuntimeConf))
	expect.Same(t, "number of queued DELs", len(expect.Value(filepath.Glob(queueDir+"/*.del"))(t)), 0)
	expect.NoError(t, release.Close(), expect.Await(t, "ADD during the shutdown", firstAdded))
	expect.NoError(t, d.Wait())
	first.wantTraffic(t)

	d = start(t)
	expect.NoError(t, expect.Await(t, "ADD after the shutdown", secondAdded))
	for _, c := range []*container{first, second} {
		c.wantTraffic(t)
		expect.NoError(t, r.CheckNetworkList(ctx, conf, c.RuntimeConf), r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestTheDaemonIsKilled, and another one goes on. Connections live on. A DEL meanwhile
// succeeds and is carried out, and an ADD waits. A DEL that turns up again ends no later
// ADD.
func TestTheDaemonIsKilled(t *testing.T) {
	leavesNothing(t)
	d, r, ctx, conf := start(t), newRuntime(t), t.Context(), node(t, "1.0.0")
	first, second := newContainer(t, "first", 8081), newContainer(t, "second", 8082)
	r.add(t, "1.0.0", first) // whether or not it serves yet
	r.add(t, "1.0.0", second)
	var open []*connection
	for _, server := range second.servers(t) {
		open = append(open, dial(t, server, second.ContainerID))
	}
	wantOpen := func() {
		t.Helper()
		for _, c := range open {
			c.wantAnswer(t)
		}
	}
	wantOpen()
	d.end(t, unix.SIGKILL)
	wantOpen()
	first.wantTraffic(t)

	// The daemon is gone. The runtime removes a container, and makes it again.
	expect.NoError(t, r.DelNetworkList(ctx, conf, first.RuntimeConf))
	expect.Same(t, "queued", first.interfaces(t), attached)
	entries := expect.Value(filepath.Glob(queueDir + "/*.del"))(t)
	expect.Same(t, "number of queued DELs", len(entries), 1)
	kept := expect.Value(os.ReadFile(entries[0]))(t)
	added := make(chan error, 1)
	go func() {
		_, err := r.AddNetworkList(ctx, conf, first.RuntimeConf)
		added <- err
	}()
	wantOpen()
	d = start(t)
	if log := d.until(t, "serving"); !strings.Contains(log, "outcome=ended container=first") || !strings.Contains(log, "adopted=1 ") {
		t.Errorf("not drained:\n%s", log)
	}
	expect.NoError(t, expect.Await(t, "ADD", added))
	first.wantTraffic(t)
	wantOpen()
	expect.NoError(t, r.CheckNetworkList(ctx, conf, second.RuntimeConf))

	// The old DEL comes back, as by a backup.
	d.end(t, unix.SIGKILL)
	expect.NoError(t, os.WriteFile(entries[0], kept, 0o600))
	d = start(t)
	if log := d.until(t, "serving"); !strings.Contains(log, "outcome=dropped container=first") || !strings.Contains(log, "adopted=2 ") {
		t.Errorf("not dropped:\n%s", log)
	}
	wantOpen()
	for _, c := range []*container{first, second} {
		c.wantTraffic(t)
		expect.NoError(t, r.CheckNetworkList(ctx, conf, c.RuntimeConf), r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}

// TestTheDaemonIsKilledAtAnyMoment of an ADD and of a DEL: the runtime repeats the DEL, and
// nothing is left.
func TestTheDaemonIsKilledAtAnyMoment(t *testing.T) {
	leavesNothing(t)
	r, ctx, conf := newRuntime(t), t.Context(), node(t, "1.1.0")
	c := newContainer(t, "c", 8080)
	die := func(d *daemon, round int) {
		timer := time.NewTimer(time.Duration(round) * 8 * time.Millisecond) // a moment to die, not a wait
		<-timer.C
		d.end(t, unix.SIGKILL)
	}
	for round := range 8 {
		d := start(t)
		if round%2 == 0 {
			d.until(t, "serving")
		}
		done := make(chan error, 1)
		go func() {
			_, err := r.AddNetworkList(ctx, conf, c.RuntimeConf)
			done <- err
		}()
		die(d, round)
		d = start(t)
		t.Logf("round %d: ADD: %v", round, expect.Await(t, "ADD", done))
		if round%4 < 2 {
			d.until(t, "serving")
		}
		go func() { done <- r.DelNetworkList(ctx, conf, c.RuntimeConf) }()
		die(d, round)
		t.Logf("round %d: DEL: %v", round, expect.Await(t, "DEL", done))
		d = start(t)
		d.until(t, "serving")
		expect.NoError(t, r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
		expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
	}
}
