package netfilter

import (
	"fmt"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(raceVariable) != "" {
		os.Exit(m.Run()) // it was started inside
	}
	if os.Getenv(addVariable) != "" {
		os.Exit(addInProcess())
	}
	if without := os.Getenv(withoutVariable); without != "" {
		if err := withoutNFTables(without == "hidden"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(refplugins.Main(m, sandbox.Shards(2)))
}
