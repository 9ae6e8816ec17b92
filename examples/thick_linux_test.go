package examples

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

// TestFirstAndLastVersion: libcni executes the shim for each verb, and packets get through on a
// network of plugins in the daemon's process, and on one of executables.
func TestFirstAndLastVersion(t *testing.T) {
	expect.NoError(t, os.MkdirAll(queueDir, 0o700))
	leavesNothing(t, stateDir)
	d, r, ctx := startDaemon(t), newRuntime(t), t.Context()
	for i, version := range []string{"0.3.1", "1.1.0"} {
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
	log := d.whole(t)
	for typ, kind := range map[string]string{conflist.Bridge: `"built in"`, conflist.Portmap: `"built in"`, conflist.PTP: "executable"} {
		for operation, calls := range map[string]int{"ADD": 2, "CHECK": 1} {
			ran := regexp.MustCompile("operation="+operation+" type="+typ+` kind=("[^"]*"|\S*)`).FindAllStringSubmatch(log, -1)
			if len(ran) != calls || slices.ContainsFunc(ran, func(found []string) bool { return found[1] != kind }) {
				t.Errorf("%s of %s ran as %q, want %d times %s", operation, typ, ran, calls, kind)
			}
		}
	}
}

// TestTheDaemonIsKilled, and another one goes on. Connections live on. A DEL meanwhile
// succeeds and is carried out, and an ADD waits. A DEL that turns up again ends no later
// ADD.
func TestTheDaemonIsKilled(t *testing.T) {
	expect.NoError(t, os.MkdirAll(queueDir, 0o700))
	leavesNothing(t, stateDir)
	d, r, ctx, conf := startDaemon(t), newRuntime(t), t.Context(), node(t, "1.0.0")
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
	d = startDaemon(t)
	wantLogged := func(text string) {
		t.Helper()
		if !strings.Contains(d.log, text) {
			d.find(t, text)
		}
	}
	wantLogged("outcome=ended container=first")
	wantLogged("recovered adopted=")
	expect.NoError(t, expect.Await(t, "ADD", added))
	first.wantTraffic(t)
	wantOpen()
	expect.NoError(t, r.CheckNetworkList(ctx, conf, second.RuntimeConf))

	// The old DEL comes back, as by a backup.
	d.end(t, unix.SIGKILL)
	expect.NoError(t, os.WriteFile(entries[0], kept, 0o600))
	d = startDaemon(t)
	wantLogged("outcome=dropped container=first")
	wantLogged("recovered adopted=2 ")
	wantOpen()
	for _, c := range []*container{first, second} {
		c.wantTraffic(t)
		expect.NoError(t, r.CheckNetworkList(ctx, conf, c.RuntimeConf), r.DelNetworkList(ctx, conf, c.RuntimeConf))
		expect.Same(t, "after DEL", c.interfaces(t), []string{"lo"})
	}
	expect.Same(t, "exit code", d.end(t, unix.SIGTERM), 0)
}
