package behaviour_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// dirs makes plugin directories, which have a plugin p each that notes its directory, the
// verb and CNI_PATH.
func (s *stage) dirs(names ...string) (paths []string) {
	s.T.Helper()
	for _, name := range names {
		p := s.Write(name+"/p", fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND %s $CNI_PATH\" >>%s\ncat >/dev/null\n"+
			`[ $CNI_COMMAND != ADD ] || echo '{"cniVersion": "1.0.0"}'`+"\n", name, s.Path("lines")))
		expect.NoError(s.T, os.Chmod(p, 0o755))
		paths = append(paths, s.Path(name))
	}
	return paths
}

// takeRuns returns the notes of the plugins without the host's directory.
func (s *stage) takeRuns() string { return strings.ReplaceAll(s.takeLines(), s.Path()+"/", "") }

// TestTheOrderOfPluginDirectories is that of the Setup until the end, in other processes
// too, and whatever a later call wants. Others of its directories do not count.
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
		{[]string{dirs[2], dirs[0]}, "a a:b"},
		{[]string{dirs[2], s.Path()}, "a a:b"},
	} {
		r := start()
		testhost.MustSetUp(t, r, "c1", path, cni.WithPluginDirOrder(c.order...))
		expect.NoError(t, start().Check(t.Context(), "c1", path))
		expect.NoError(t, start().Remove(t.Context(), "c1", path, cni.WithPluginDirOrder(dirs...)))
		expect.Same(t, fmt.Sprint(c.order), s.takeRuns(), "ADD "+c.want+", CHECK "+c.want+", DEL "+c.want)
	}
	expect.Is(t, errOf(start().Setup(t.Context(), "c1", path, cni.WithNetwork("net", cni.WithPluginDirOrder(dirs[1])))), cni.ErrInvalidArgument)
}

// TestAnOrderThatChangesNothing is not kept: a client's CNI_PATH usually names the daemon's
// directories, and others that the daemon does not have.
func TestAnOrderThatChangesNothing(t *testing.T) {
	s := newStage(t)
	path := s.Container("c1")
	dirs := s.dirs("a", "b")
	r := s.Runtime(cni.WithConfListBytes(testhost.Conflist("net", "1.0.0", nil, "p")), cni.WithPluginDir(dirs))
	for _, order := range [][]string{dirs, {"/foreign", dirs[0] + "/"}, {"/foreign"}} {
		testhost.MustSetUp(t, r, "c1", path, cni.WithPluginDirOrder(order...))
		rec := expect.Value(s.Records().Load("c1"))(t)
		expect.Same(t, fmt.Sprint("on record with ", order), rec.Attachments[0].PluginDirs, nil)
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
	}
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
