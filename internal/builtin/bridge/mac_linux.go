package bridge

import (
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/plugin"
)

// macConfig has the fields, besides CNI_ARGS, that can set the MAC address of
// the container's end.
type macConfig struct {
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`

	mac net.HardwareAddr // nil: a random one
}

// environment are the settings in CNI_ARGS.
type environment struct {
	types.CommonArgs
	MAC types.UnmarshallableString `json:"mac,omitempty"`
}

// readMAC chooses the address from the runtime, the arguments in the
// configuration, or CNI_ARGS, in this order.
func (c *macConfig) readMAC(args string) (err error) {
	var env environment
	if err := types.LoadArgs(args, &env); err != nil {
		return plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	for _, from := range []struct{ field, mac string }{
		{"runtimeConfig.mac", c.RuntimeConfig.MAC},
		{"args.cni.mac", c.Args.CNI.MAC},
		{"MAC in CNI_ARGS", string(env.MAC)},
	} {
		if from.mac == "" {
			continue
		}
		if c.mac, err = net.ParseMAC(from.mac); err != nil || len(c.mac) != 6 {
			return invalid(`%q: %q is not the MAC address of an Ethernet interface`, from.field, from.mac)
		}
		return nil
	}
	return nil
}
