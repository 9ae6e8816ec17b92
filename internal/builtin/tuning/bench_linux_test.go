package tuning

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
)

func Benchmark(b *testing.B) {
	h := plugintest.NewHost(b)
	for _, side := range []plugintest.Side{ours(h), plugintest.Theirs(b, h.Host)} {
		c := callFor(h, strings.Replace(fmt.Sprintf(configured, b.TempDir()), "2000 3000", `2000\t3000`, 1))
		b.Run(side.Name, func(b *testing.B) { plugintest.Benchmark(b, side, c) })
	}
}
