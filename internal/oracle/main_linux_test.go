package oracle

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. It builds the reference
// plugins first, outside.
func TestMain(m *testing.M) {
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}

// verbsOf renders calls as "ADD a", "DEL a": verb and plugin type in order.
func verbsOf(calls []scripted.Call) (s []string) {
	for _, c := range calls {
		s = append(s, c.Verb+" "+c.Type)
	}
	return s
}
