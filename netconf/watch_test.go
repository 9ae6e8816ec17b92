package netconf_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netconf"
)

// TestWatchOnEverySystem: nothing in it needs Linux.
func TestWatchOnEverySystem(t *testing.T) {
	dir := t.TempDir()
	aside := filepath.Join(t.TempDir(), "new")
	put := func(file, content string) { // at once: between making and filling a file the Watch may look
		t.Helper()
		expect.NoError(t, os.WriteFile(aside, []byte(content), 0o644), os.Rename(aside, filepath.Join(dir, file)))
	}
	list := func(name, typ string) string {
		return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": %q}]}`, name, typ)
	}
	r := expect.Value(cni.New(cni.WithPluginConfDir(dir), cni.WithStateDir(t.TempDir())))(t)
	put("10-a.conflist", "{")
	expect.Fails(t, "Load", r.Load(cni.WithAllConf))

	ctx, cancel := context.WithCancel(context.Background())
	events, ended := make(chan netconf.WatchEvent, 1000), make(chan error, 1)
	go func() {
		ended <- netconf.Watch(ctx, r, netconf.WatchOptions{Settle: 5 * time.Millisecond, Report: func(e netconf.WatchEvent) { events <- e }})
	}()
	next := func(want string) {
		t.Helper()
		for { // a system may announce one change several times
			if got := expect.Await(t, want, events).String(); got == want || strings.HasPrefix(got, want+":") {
				return
			} else if !strings.HasPrefix(got, "unchanged") {
				t.Errorf("event %q, want %q", got, want)
			}
		}
	}
	expect.Same(t, "without a network", expect.Await(t, "a look", events).String(), "loaded nothing: cni config load failed: no network config found in "+dir+" that is valid; "+
		filepath.Join(dir, "10-a.conflist")+": error parsing configuration list: unexpected end of JSON input at line 1, column 1: "+
		"invalid cni config: cni plugin not initialized: failed to load cni config")
	put("10-a.conflist", list("a", "p"))
	next("loaded added=a")
	put("20-b.conflist", list("b", "p"))
	next("loaded added=b")
	put("10-a.conflist", list("a", "q"))
	next("loaded changed=a")
	expect.NoError(t, os.Remove(filepath.Join(dir, "20-b.conflist")))
	next("loaded removed=b")
	put("10-a.conflist", "{")
	next("kept")
	put("10-a.conflist", list("c", "q"))
	next("loaded added=c removed=a")
	expect.NoError(t, os.Remove(filepath.Join(dir, "10-a.conflist")))
	next("unloaded removed=c")
	cancel()
	expect.NoError(t, expect.Await(t, "the end", ended))
}
