package cli

import (
	"cmp"
	"fmt"
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

// released is the version as which make install has built the program: the linker sets it.
var released string

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupCNI,
		Short:   "Prints the version of the program, and those of CNI that it speaks.",
		Long: `Version prints the version of embedcni, that of Go, and the versions of CNI's
specification in which configurations may be written.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionView{Version: "(unknown)", CNIVersions: version.All.SupportedVersions()}
			if info, ok := debug.ReadBuildInfo(); ok {
				v.Version, v.Go = cmp.Or(released, info.Main.Version), info.GoVersion
			}
			return a.print(v, func() string {
				return fmt.Sprintf("embedcni %s, %s, CNI %s\n", v.Version, v.Go, strings.Join(v.CNIVersions, " "))
			})
		},
	}
}
