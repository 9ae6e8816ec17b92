package netfilter

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) {
	if os.Getenv(raceVariable) != "" {
		os.Exit(m.Run()) // it was started inside
	}
	if id := os.Getenv(addVariable); id != "" {
		os.Exit(addInProcess(id))
	}
	os.Exit(refplugins.Main(m))
}
