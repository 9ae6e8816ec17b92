package hostdevice

import (
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
)

func Benchmark(b *testing.B) {
	h := newHost(b)
	plugintest.Benchmark(b, ours(h), callFor(h, b.TempDir(), `"device": "dev0"`))
}
