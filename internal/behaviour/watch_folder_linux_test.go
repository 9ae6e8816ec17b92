package behaviour_test

import (
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netconf"
)

// TestWatchSeesAFolderThatComesLater: a list whose plugins are in files beside it could not
// be loaded without them.
func TestWatchSeesAFolderThatComesLater(t *testing.T) {
	const list = `{"cniVersion": "1.0.0", "name": "a"}`
	const plugin = `{"type": "p"}`
	for from, opt := range map[string]func(w *watched) cni.Opt{
		"WithConfListFile":  func(w *watched) cni.Opt { return cni.WithConfListFile(w.path("conf/a.conflist")) },
		"WithConfiguration": func(w *watched) cni.Opt { return cni.WithConfiguration(w.path("conf/a.conflist")) },
		"WithAllConf":       func(*watched) cni.Opt { return cni.WithAllConf },
		"WithNetworkName":   func(*watched) cni.Opt { return cni.WithNetworkName("a") },
	} {
		for what, tt := range map[string]struct {
			before, comes func(w *watched)
		}{
			"a directory": {nil, func(w *watched) { w.write("conf/a/10.conf", plugin) }},
			"a file in it": {
				func(w *watched) { expect.NoError(t, os.MkdirAll(w.path("conf/a"), 0o755)) },
				func(w *watched) { w.write("conf/a/10.conf", plugin) },
			},
			"a directory, by renaming": {
				func(w *watched) { w.write("conf.new/a/10.conf", plugin) },
				func(w *watched) { w.rename("conf.new/a", "conf/a") },
			},
			"a symbolic link": {
				func(w *watched) { w.write("elsewhere/a/10.conf", plugin) },
				func(w *watched) { w.symlink("../elsewhere/a", "conf/a") },
			},
			"the target of a symbolic link": {
				func(w *watched) { w.symlink("../elsewhere/deep/a", "conf/a") },
				func(w *watched) { w.write("elsewhere/deep/a/10.conf", plugin) },
			},
			"the target of a file's symbolic link": {
				func(w *watched) { w.symlink("../../elsewhere/10.conf", "conf/a/10.conf") },
				func(w *watched) { w.write("elsewhere/10.conf", plugin) },
			},
		} {
			t.Run(from+", "+what, func(t *testing.T) {
				testhost.LeavesNothingRunning(t)
				w := &watched{t: t, dir: t.TempDir()}
				w.write("conf/a.conflist", list)
				if tt.before != nil {
					tt.before(w)
				}
				r := expect.Value(cni.New(cni.WithPluginConfDir(w.path("conf")), cni.WithStateDir(w.path("state"))))(t)
				if err := r.Load(opt(w)); err == nil {
					t.Fatal("it was loaded without plugins")
				}
				w = watch(t, w.dir, r)
				w.until(netconf.Kept, "")
				tt.comes(w)
				w.until(netconf.Loaded, "a=eth0")
				w.write("conf/a/20.conf", `{"type": "q"}`)
				e := w.until(netconf.Loaded, "a=eth0")
				expect.Same(t, "changed", e.Changed, []string{"a"})
			})
		}
	}
}

// TestWatchFollowsTheFolderOfAnotherName: the file, which cannot be loaded yet, names
// another network before its folder comes.
func TestWatchFollowsTheFolderOfAnotherName(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	w := &watched{t: t, dir: t.TempDir()}
	w.write("conf/a.conflist", `{"cniVersion": "1.0.0", "name": "a"}`)
	r := expect.Value(cni.New(cni.WithStateDir(w.path("state"))))(t)
	if err := r.Load(cni.WithConfListFile(w.path("conf/a.conflist"))); err == nil {
		t.Fatal("it was loaded without plugins")
	}
	w = watch(t, w.dir, r)
	w.until(netconf.Kept, "")
	w.write("conf/a.conflist", `{"cniVersion": "1.0.0", "name": "b"}`)
	w.until(netconf.Kept, "")
	w.write("conf/b/10.conf", `{"type": "p"}`)
	w.until(netconf.Loaded, "b=eth0")
}
