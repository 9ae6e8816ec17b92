package ipam

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) {
	if base, ok := os.LookupEnv(victim); ok {
		os.Exit(workUntilKilled(base))
	}
	os.Exit(refplugins.Main(m))
}
