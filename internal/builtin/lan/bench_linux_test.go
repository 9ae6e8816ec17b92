package lan

import (
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
)

func BenchmarkMACVLAN(b *testing.B) {
	h := macvlanHost(b)
	plugintest.Benchmark(b, macvlanSide(h), macvlanCall(h, b.TempDir(), `"master": "veth0", `+dual))
}

func BenchmarkHostDevice(b *testing.B) {
	h := deviceHost(b)
	plugintest.Benchmark(b, deviceSide(h), deviceCall(h, b.TempDir(), `"device": "dev0"`))
}
