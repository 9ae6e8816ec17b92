package hostlocal

import (
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/plugin"
)

// Sample returns a result as Add does, but with the first address of every range. It
// reserves nothing.
func (*Plugin) Sample(r *plugin.Request) (*types100.Result, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: c.routes}
	for _, set := range c.sets {
		for _, of := range set {
			result.IPs = append(result.IPs, ipConfig(of.first, of))
		}
	}
	return result, nil
}
