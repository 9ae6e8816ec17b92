// Package loopback sets the loopback interface up.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "loopback". The interface is lo, whatever CNI_IFNAME is.
type Plugin struct{}

const name = "lo"

// Add sets the interface up. A previous result is passed on as it is.
func (Plugin) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	nl, lo, err := find(r)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	if err := nl.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("set interface lo up: %w", err)
	}
	if r.PrevResult != nil {
		return r.Chained()
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: name, Mac: "00:00:00:00:00:00", Sandbox: r.NetNS}},
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := nl.AddrList(lo, family)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of interface lo: %w", err)
		}
		for i, a := range addrs {
			if !a.IP.IsLoopback() {
				return nil, fmt.Errorf("interface lo has the address %s, which is not a loopback address", a.IP)
			}
			if i == 0 {
				result.IPs = append(result.IPs, &types100.IPConfig{Interface: types100.Int(0), Address: *a.IPNet})
			}
		}
	}
	return result, nil
}

// Del sets the interface down. Without a namespace there is nothing to do.
func (Plugin) Del(_ context.Context, r *plugin.Request) error {
	if r.Container == nil {
		return nil
	}
	nl, lo, err := find(r)
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := nl.LinkSetDown(lo); err != nil {
		return fmt.Errorf("set interface lo down: %w", err)
	}
	return nil
}

// Check makes sure that the interface is up.
func (Plugin) Check(_ context.Context, r *plugin.Request) error {
	nl, lo, err := find(r)
	if err != nil {
		return err
	}
	defer nl.Close()
	if lo.Attrs().Flags&net.FlagUp == 0 {
		return errors.New("loopback interface is down")
	}
	return nil
}

// find opens a socket in the container, which the caller closes.
func find(r *plugin.Request) (*netlink.Handle, netlink.Link, error) {
	nl, err := links.Open(r.Container)
	if err != nil {
		return nil, nil, err
	}
	lo, err := nl.LinkByName(name)
	if err != nil {
		nl.Close()
		return nil, nil, fmt.Errorf("interface lo: %w", err)
	}
	return nl, lo, nil
}
