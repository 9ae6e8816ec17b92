package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/cobra"
)

// versionView is the version in JSON.
type versionView struct {
	Version     string   `json:"version"` // of the command's module
	Go          string   `json:"go"`
	CNIVersions []string `json:"cniVersions"` // of the specification
}

// release is the version of a package of the program, set by its maker:
//
//	go build -ldflags "-X github.com/embedcni/cni/cmd/embedcni/internal/cli.release=v0.1.0"
//
// Without it the version is that of the module, as go install knows it.
var release string

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupCNI,
		Short:   "Prints the version of the program, and those of CNI that it speaks.",
		Long: `Version prints the version of embedcni, that of Go, and the versions of CNI's
specification in which configurations may be written.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionView{Version: release, Go: runtime.Version(), CNIVersions: version.All.SupportedVersions()}
			if info, ok := debug.ReadBuildInfo(); ok && release == "" {
				v.Version = info.Main.Version
			}
			return a.print(v, func() string {
				return fmt.Sprintf("embedcni %s, %s, CNI %s\n", v.Version, v.Go, strings.Join(v.CNIVersions, " "))
			})
		},
	}
}
