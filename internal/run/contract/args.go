package contract

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/plugin"
)

// MAC returns the argument MAC of CNI_ARGS, or "".
func MAC(r *plugin.Request) (string, error) {
	var args struct {
		types.CommonArgs
		MAC types.UnmarshallableString
	}
	if err := types.LoadArgs(r.Args, &args); err != nil {
		return "", plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	return string(args.MAC), nil
}
