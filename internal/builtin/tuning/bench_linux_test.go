package tuning

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
)

func Benchmark(b *testing.B) {
	h := plugintest.NewHost(b)
	plugintest.Benchmark(b, ours(h), callFor(h, strings.Replace(fmt.Sprintf(configured, b.TempDir()), "2000 3000", `2000\t3000`, 1)))
}
