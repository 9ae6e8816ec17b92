package backend_test

import (
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// TestTheClientsCNIPathDecidesTheOrder of the daemon's plugin directories, at ADD, or at the
// DEL of a container that is not on record.
func TestTheClientsCNIPathDecidesTheOrder(t *testing.T) {
	s := newStage(t)
	bin, more := s.Path("bin"), s.Path("more")
	b := backend.New(s.Runtime(cni.WithOwner("us"), cni.WithPluginDir([]string{bin, more})), backend.Options{})
	asked := func(path ...string) *server.Request {
		r := s.request("c1", "eth0", delegating("node", delegate("", "p")))
		r.PluginDirs = path
		return r
	}
	for _, c := range []struct {
		add  []string
		want string // CNI_PATH of the plugins
	}{
		{nil, bin + ":" + more},
		{[]string{more}, more + ":" + bin},
		{[]string{s.Path(), bin + "/below"}, bin + ":" + more},
	} {
		expect.Value(b.Add(t.Context(), asked(c.add...)))(t)
		expect.NoError(t, b.Check(t.Context(), asked(bin)))
		expect.NoError(t, b.Del(t.Context(), asked(more, bin)))
		var paths []string
		for _, call := range s.TakeCalls() {
			paths = append(paths, call.Verb+" "+call.Path)
		}
		expect.Same(t, "CNI_PATH", paths, []string{"ADD " + c.want, "CHECK " + c.want, "DEL " + c.want})
	}
	expect.NoError(t, b.Del(t.Context(), asked(more)))
	expect.Same(t, "without a record", s.TakeCalls()[0].Path, more+":"+bin)
}
