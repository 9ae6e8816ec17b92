package bridge

import (
	"net"

	"github.com/embedcni/cni/internal/caller"
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

// readMAC chooses the address from the runtime, the arguments in the
// configuration, or CNI_ARGS, in this order.
func (c *macConfig) readMAC(r *plugin.Request) error {
	arg, err := caller.MAC(r)
	if err != nil {
		return err
	}
	for _, from := range []struct{ field, mac string }{
		{"runtimeConfig.mac", c.RuntimeConfig.MAC},
		{"args.cni.mac", c.Args.CNI.MAC},
		{"MAC in CNI_ARGS", arg},
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
