package backend

import (
	"encoding/json"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/thick/server"
)

// lo is the loopback interface, which every namespace has: an ADD sets it up.
const lo = "lo"

// loopback returns the loopback network of a request.
func loopback(r *server.Request) ([]network, error) {
	config, err := json.Marshal(map[string]any{
		"cniVersion": r.CNIVersion, "name": r.Network, "plugins": []any{map[string]string{"type": conflist.Loopback}},
	})
	return []network{{name: r.Network, network: r.Network, ifName: lo, config: config}}, err
}

// loOfAnother returns the result of an ADD for lo that another Add for the container has
// attached with its networks, and nil if none has.
func (b *Backend) loOfAnother(r *server.Request) types.Result {
	mine, others, err := b.recorded(r)
	if err != nil || len(mine) > 0 {
		return nil
	}
	for _, a := range others {
		if a.IfName != lo || !isAdds(a) {
			continue
		}
		result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Interfaces: []*types100.Interface{{Name: lo, Sandbox: r.NetNS}}}
		for _, address := range a.Addresses {
			ip := address.IP()
			result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0),
				Address: net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(address.Prefix.Bits(), ip.BitLen())}})
		}
		return result
	}
	return nil
}
