package leftovers

import (
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m)) }
