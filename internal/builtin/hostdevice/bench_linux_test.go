package hostdevice

import (
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
)

func Benchmark(b *testing.B) {
	h := newHost(b)
	for _, side := range []plugintest.Side{ours(h), plugintest.Theirs(b, h.Host)} {
		c := callFor(h, b.TempDir(), configurations["layer 2"])
		b.Run(side.Name, func(b *testing.B) { plugintest.Benchmark(b, side, c) })
	}
}
