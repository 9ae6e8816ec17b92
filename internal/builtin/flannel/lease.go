package flannel

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/plugin"
)

// lease is what flanneld writes into a file for the host's subnet:
//
//	FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16
//	FLANNEL_SUBNET=10.244.1.1/24
//	FLANNEL_IPV6_NETWORK=fd00:10:244::/64
//	FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/80
//	FLANNEL_MTU=1450
//	FLANNEL_IPMASQ=true
type lease struct {
	networks [2][]*net.IPNet // of all hosts, IPv4 and IPv6
	subnets  [2]*net.IPNet   // of this host; nil: no addresses of the family
	mtu      *uint64
	ipMasq   *bool // flanneld masquerades by itself
}

// readLease reads the file. flanneld writes it when it has its lease, so the error for a
// missing one is temporary.
func readLease(path string) (*lease, error) {
	data, err := plainfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, plugin.Errorf(types.ErrTryAgainLater, "flanneld has not written its lease yet: %w", err)
	}
	if err != nil {
		return nil, err
	}
	l, err := parseLease(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseLease(text string) (*lease, error) {
	l := &lease{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		if err := l.set(key, value); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	var missing []string
	if len(l.networks[0]) == 0 && len(l.networks[1]) == 0 {
		missing = append(missing, "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
	}
	if l.subnets[0] == nil && l.subnets[1] == nil {
		missing = append(missing, "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
	}
	if l.mtu == nil {
		missing = append(missing, "FLANNEL_MTU")
	}
	if l.ipMasq == nil {
		missing = append(missing, "FLANNEL_IPMASQ")
	}
	if missing != nil {
		return nil, errors.New("it is missing " + strings.Join(missing, ", "))
	}
	return l, nil
}

// set sets one variable. Others than those of the lease are none of ours.
func (l *lease) set(key, value string) (err error) {
	family := 0
	if strings.HasPrefix(key, "FLANNEL_IPV6_") {
		family = 1
	}
	switch key {
	case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
		l.networks[family], err = parseNetworks(value)
	case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
		_, l.subnets[family], err = net.ParseCIDR(value)
	case "FLANNEL_MTU":
		l.mtu = new(uint64)
		*l.mtu, err = strconv.ParseUint(value, 10, 32)
	case "FLANNEL_IPMASQ":
		is := value == "true"
		l.ipMasq = &is
	}
	return err
}

// parseNetworks returns the networks of a list, each once.
func parseNetworks(list string) (all []*net.IPNet, err error) {
	for one := range strings.SplitSeq(list, ",") {
		_, n, err := net.ParseCIDR(one)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(m *net.IPNet) bool { return m.String() == n.String() }) {
			all = append(all, n)
		}
	}
	return all, nil
}
