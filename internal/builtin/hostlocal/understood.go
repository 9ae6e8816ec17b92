package hostlocal

import (
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/plugin"
)

// Understood is the plugin's interpretation of a configuration. The oracle
// compares it with the reference plugin's.
type Understood struct {
	Sets      []string        // of each range set "subnet range gateway", separated by ", "
	Requested map[string]bool // addresses
	DataDir   string          // of the network
	Resolv    string
	Routes    []*types.Route
}

// Understand reads a request's configuration like Add, and changes nothing.
func Understand(r *plugin.Request) (Understood, error) {
	c, err := parse(r)
	if err != nil {
		return Understood{}, err
	}
	u := Understood{Requested: map[string]bool{}, DataDir: c.dir, Resolv: c.resolvConf, Routes: c.routes}
	for _, set := range c.sets {
		var text []string
		for _, r := range set {
			text = append(text, fmt.Sprintf("%v %v %v", r.subnet, r, r.gateway))
		}
		u.Sets = append(u.Sets, strings.Join(text, ", "))
	}
	for _, a := range c.requested {
		u.Requested[a.String()] = true
	}
	return u, nil
}
