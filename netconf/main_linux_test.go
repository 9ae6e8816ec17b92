package netconf

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) {
	if job, ok := os.LookupEnv(writerEnv); ok {
		os.Exit(writeMain(job))
	}
	os.Exit(refplugins.Main(m))
}
