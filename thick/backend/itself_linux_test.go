package backend_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheShimAsItsOwnPluginIsRefused: the daemon runs the plugin of a network, which asks the
// daemon, which would wait for itself.
func TestTheShimAsItsOwnPluginIsRefused(t *testing.T) {
	s := newSite(t, false)
	s.Plugins = s.Path("plugins")
	self := expect.Value(os.Executable())(t)
	expect.NoError(t, os.Mkdir(s.Plugins, 0o755), os.Symlink(self, filepath.Join(s.Plugins, "shim")))
	d := start(t, s.settings)
	before := s.Audit()
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "node", "type": "shim", "cni.dev/valid-attachments": [],
		"delegates": [{"name": "inner", "type": "shim", "daemonSocketDir": %q}]}`, filepath.Dir(s.Socket))
	path := s.Container("c1")
	for _, c := range []struct {
		verb   string
		status int
	}{{"ADD", 400}, {"DEL", 200}, {"STATUS", 400}, {"GC", 400}, {"ADD", 400}, {"DEL", 200}} {
		type answer struct {
			status int
			text   []byte
			err    error
		}
		answers := make(chan answer, 1)
		go func() {
			status, text, err := s.post(s.environment(c.verb, "c1", path), config)
			answers <- answer{status, text, err}
		}()
		got := expect.Await(t, c.verb, answers)
		expect.NoError(t, got.err)
		expect.Same(t, c.verb+": status", got.status, c.status)
		if c.status != 200 {
			expect.Contains(t, c.verb, string(got.text), `"code":7`, `network \"inner\" asks the daemon that runs its plugins`, `\"shim\" is the daemon's own shim`)
		}
	}
	expect.Same(t, "records", len(expect.Value(s.Records().List())(t)), 0)
	d.stop()
	_, gone := s.Left(before)
	expect.Same(t, "gone", len(gone), 0)
}
