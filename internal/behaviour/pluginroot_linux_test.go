package behaviour_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// hostRoot is the root of a host, as a daemon in a container sees it: it has the reference
// plugins in /lib/plugins, /proc, and the directories of the test at the same path.
type hostRoot struct {
	dir string
	t   *testing.T
}

func newHostRoot(h *realHost, t *testing.T, shared ...string) hostRoot {
	t.Helper()
	root := hostRoot{t.TempDir(), t}
	bin := filepath.Join(root.dir, "lib/plugins")
	expect.NoError(t, os.MkdirAll(bin, 0o755), os.MkdirAll(filepath.Join(root.dir, "opt/cni"), 0o755),
		os.Symlink("/lib/plugins", filepath.Join(root.dir, "opt/cni/bin"))) // absolute: it is not there outside
	for _, name := range []string{"bridge", "host-local"} {
		data := expect.Value(os.ReadFile(filepath.Join(testhost.ReferencePlugins(t), name)))(t)
		expect.NoError(t, os.WriteFile(filepath.Join(bin, name), data, 0o755))
	}
	root.mount("/proc", "/proc")
	for _, path := range shared {
		root.mount(path, path)
	}
	return root
}

// mount binds a directory of the test, with the mounts in it, to a path in the root.
func (r hostRoot) mount(from, at string) {
	r.t.Helper()
	at = filepath.Join(r.dir, at)
	expect.NoError(r.t, os.MkdirAll(at, 0o755), unix.Mount(from, at, "", unix.MS_BIND|unix.MS_REC, ""))
	r.t.Cleanup(func() { expect.NoError(r.t, unix.Unmount(at, unix.MNT_DETACH)) })
}

// script puts a shell plugin into the root, with a static shell.
func (r hostRoot) script(typ, text string) {
	r.t.Helper()
	busybox := expect.Value(os.ReadFile("/bin/busybox"))(r.t)
	for path, content := range map[string][]byte{"bin/sh": busybox, "lib/plugins/" + typ: []byte("#!/bin/sh\n" + text)} {
		path = filepath.Join(r.dir, path)
		expect.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o755))
	}
}

func (r hostRoot) option() cni.Opt { return cni.WithPluginRoot(r.dir) }

// rooted returns a runtime for one bridge, whose executables are in /opt/cni/bin of a root.
func (h *realHost) rooted(root string, more ...cni.Opt) *cni.Runtime {
	c := testhost.Case{Plugins: []string{`{"type": "bridge", "bridge": "cni0", ` + testhost.HostLocal(testhost.V4Range) + `}`}}
	return h.Runtime(append([]cni.Opt{cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))),
		cni.WithPluginDir([]string{"/opt/cni/bin"}), cni.WithPluginRoot(root)}, more...)...)
}

// TestPluginsRunInAnotherRoot: bridge attaches the container, by an executable that is
// nowhere outside, and finds host-local beside it.
func TestPluginsRunInAnotherRoot(t *testing.T) {
	h := newRealHost(t)
	path := h.Container("c1")
	root := newHostRoot(h, t, h.Dir)
	before := h.Audit()
	r := h.rooted(root.dir)
	result := testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	got := result.Interfaces["eth0"]
	expect.Must(t, got != nil && len(got.IPConfigs) == 1, "result %+v", result)
	for _, a := range expect.Value(r.Attachments())(t) {
		expect.Same(t, "plugins", a.Plugins, map[string]string{"bridge": "executable"})
	}
	expect.Same(t, "host-local has reserved something here", len(expect.Value(os.ReadDir(h.Path("ipam/podnet")))(t)) > 0, true)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	h.WantClean(before)

	// A daemon that moves out of its container finds its containers' executables.
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, h.rooted("/").Remove(t.Context(), "c1", path))
	h.WantClean(before)
}

// TestAPluginStartsInItsRoot: its working directory is there, and so is all that it sees.
func TestAPluginStartsInItsRoot(t *testing.T) {
	h := newRealHost(t)
	path := h.Container("c1")
	root := newHostRoot(h, t, h.Path("netns"))
	root.script("p", `[ $CNI_COMMAND != ADD ] || echo "$PWD $0 $CNI_PATH" "$(cd /; echo *)" >/said; cat >/dev/null; echo '{"cniVersion": "1.0.0"}'`)
	r := h.Runtime(cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", nil, "p")), cni.WithPluginDir([]string{"/opt/cni/bin"}), root.option())
	testhost.MustSetUp(t, r, "c1", path)
	said := string(expect.Value(os.ReadFile(filepath.Join(root.dir, "said")))(t))
	want := "/ /opt/cni/bin/p /opt/cni/bin bin lib opt proc"
	expect.That(t, strings.HasPrefix(said, want), "it sees %q, want %q", said, want)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestARootInWhichNothingRuns: a plugin is not run if it is not in the root, or would find
// another namespace there, or if nobody outside saw the addresses that it reserves.
func TestARootInWhichNothingRuns(t *testing.T) {
	for name, c := range map[string]struct {
		shared func(h *realHost) []string
		change func(h *realHost, root hostRoot)
		says   string
	}{
		"no plugin": {func(h *realHost) []string { return []string{h.Dir} }, func(h *realHost, root hostRoot) {
			expect.NoError(h.T, os.Remove(filepath.Join(root.dir, "lib/plugins/bridge")))
		}, "failed to find plugin"},
		"no namespaces": {func(h *realHost) []string { return []string{h.Path("ipam")} }, nil, "network namespace"},
		"another namespace at the path": {func(h *realHost) []string { return []string{h.Path("ipam")} }, func(h *realHost, root hostRoot) {
			h.Container("other")
			file := filepath.Join(root.dir, h.Path("netns"), "c1")
			expect.NoError(h.T, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644),
				unix.Mount(h.Path("netns", "other"), file, "", unix.MS_BIND, ""))
			h.T.Cleanup(func() { expect.NoError(h.T, unix.Unmount(file, unix.MNT_DETACH)) })
		}, "network namespace"},
		"other reservations": {func(h *realHost) []string { return []string{h.Path("netns")} }, nil, "host-local"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRealHost(t)
			path := h.Container("c1")
			expect.NoError(t, os.Mkdir(h.Path("ipam"), 0o755))
			root := newHostRoot(h, t, c.shared(h)...)
			if c.change != nil {
				c.change(h, root)
			}
			before := h.Audit()
			h.NoBuiltins = true
			r := h.rooted(root.dir)
			fails(t, expect.Err(r.Setup(t.Context(), "c1", path)), c.says, root.dir)
			h.WantClean(before)
			expect.Is(t, expect.Err(r.Lookup("c1")), cni.ErrNotAttached)
		})
	}
}

// TestARootThatIsGoneAtTheEnd: a container is removed nevertheless, because all that its
// plugins have left is found without them.
func TestARootThatIsGoneAtTheEnd(t *testing.T) {
	h := newRealHost(t)
	path := h.Container("c1")
	root := newHostRoot(h, t, h.Dir)
	before := h.Audit()
	r := h.rooted(root.dir)
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, os.Rename(filepath.Join(root.dir, "lib"), filepath.Join(root.dir, "away")))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	h.WantClean(before)
}

// TestPluginRootsThatAreRefused: by New, and by Setup if it is missing or others can replace it.
func TestPluginRootsThatAreRefused(t *testing.T) {
	h := newRealHost(t)
	path := h.Container("c1")
	for _, opts := range [][]cni.Opt{
		{cni.WithPluginRoot("hostroot")}, {cni.WithPluginRoot("")}, {cni.WithPluginRoot("/hostroot"), cni.WithPluginDir([]string{"bin"})},
	} {
		expect.Is(t, errOf(cni.New(opts...)), cni.ErrInvalidArgument)
	}
	none := h.rooted(h.Path("none")) // no reason to run a built-in plugin
	expect.Is(t, errOf(none.Setup(t.Context(), "c1", path)), fs.ErrNotExist)
	root := newHostRoot(h, t, h.Dir)
	r := h.rooted(root.dir)
	expect.NoError(t, os.Chmod(root.dir, 0o777))
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), cni.ErrInsecureFile)
	expect.NoError(t, os.Chmod(root.dir, 0o755))
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestADeadContainerInAnotherRoot: its path leads nowhere any more, and the one that keeps
// its namespace is not in the root, so that no DEL can run there. The sweep removes all.
func TestADeadContainerInAnotherRoot(t *testing.T) {
	h := newRealHost(t)
	path := h.Mortal("c1")
	root := newHostRoot(h, t, h.Dir)
	before := h.Audit()
	r := h.rooted(root.dir, cni.WithoutReaping())
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) // the root still has it
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	h.WantClean(before)
}

// dirs makes plugin directories, which have a plugin p each that notes its directory, the
// verb and CNI_PATH.
func (s *stage) dirs(names ...string) (paths []string) {
	s.T.Helper()
	for _, name := range names {
		p := write(s.Host, name+"/p", fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND %s $CNI_PATH\" >>%s\ncat >/dev/null\n"+
			`[ $CNI_COMMAND != ADD ] || echo '{"cniVersion": "1.0.0"}'`+"\n", name, s.Path("lines")))
		expect.NoError(s.T, os.Chmod(p, 0o755))
		paths = append(paths, s.Path(name))
	}
	return paths
}

// takeRuns returns the notes of the plugins without the host's directory.
func (s *stage) takeRuns() string { return strings.ReplaceAll(s.takeLines(), s.Path()+"/", "") }

// TestTheOrderOfPluginDirectories is that of the Setup until the end, in other processes
// too, and whatever a later call wants. Others of its directories do not count, and an order
// that changes nothing is not kept: a client's CNI_PATH usually names the daemon's directories.
func TestTheOrderOfPluginDirectories(t *testing.T) {
	s := newStage(t)
	dirs := s.dirs("a", "b", "foreign")
	path := s.Container("c1")
	conf := cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", nil, "p"))
	start := func() *cni.Runtime { return s.Runtime(conf, cni.WithPluginDir(dirs[:2])) }
	for _, c := range []struct {
		order []string
		want  string
	}{
		{nil, "a a:b"},
		{[]string{dirs[1]}, "b b:a"},
		{[]string{dirs[1] + "/", dirs[0]}, "b b:a"},
		{dirs[:2], "a a:b"},
		{[]string{dirs[2], dirs[0] + "/"}, "a a:b"},
		{[]string{dirs[2], s.Path()}, "a a:b"},
	} {
		testhost.MustSetUp(t, start(), "c1", path, cni.WithPluginDirOrder(c.order...))
		rec := expect.Value(s.Records().Load("c1"))(t)
		expect.Same(t, "on record", rec.Attachments[0].PluginDirs != nil, c.want != "a a:b")
		expect.NoError(t, start().Check(t.Context(), "c1", path))
		expect.NoError(t, start().Remove(t.Context(), "c1", path, cni.WithPluginDirOrder(dirs...)))
		expect.Same(t, fmt.Sprint(c.order), s.takeRuns(), "ADD "+c.want+", CHECK "+c.want+", DEL "+c.want)
	}
	expect.Is(t, errOf(start().Setup(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithPluginDirOrder(dirs[1])))), cni.ErrInvalidArgument)
}

// TestADirectoryOfTheOrderThatIsNoneAnyMore: the executable runs where it was, and the
// directory has lost its precedence for others.
func TestADirectoryOfTheOrderThatIsNoneAnyMore(t *testing.T) {
	s := newStage(t)
	dirs := s.dirs("a", "b")
	path := s.Container("c1")
	conf := cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", nil, "p"))
	testhost.MustSetUp(t, s.Runtime(conf, cni.WithPluginDir(dirs)), "c1", path, cni.WithPluginDirOrder(dirs[1]))
	s.takeRuns()
	expect.NoError(t, s.Runtime(conf, cni.WithPluginDir(dirs[:1])).Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", s.takeRuns(), "DEL b a:b")
}
