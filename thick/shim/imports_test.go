package shim_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestTheShimStaysSmall: it is started for every CNI call.
func TestTheShimStaysSmall(t *testing.T) {
	out := expect.Value(exec.Command("go", "list", "-deps", ".").Output())(t)
	deps := strings.Fields(string(out))
	for _, heavy := range []string{
		"github.com/embedcni/cni", "github.com/embedcni/cni/thick/server", "github.com/containernetworking/cni/libcni",
		"net/http", "crypto/tls", "os/exec", "testing", "github.com/fsnotify/fsnotify",
	} {
		if slices.Contains(deps, heavy) {
			t.Errorf("the shim depends on %s", heavy)
		}
	}
	if !slices.Contains(deps, "github.com/embedcni/cni/thick/internal/wire") {
		t.Errorf("no dependencies are listed: %q", deps)
	}
}
