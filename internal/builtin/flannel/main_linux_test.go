package flannel

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m, refplugins.WithFlannel())) }
