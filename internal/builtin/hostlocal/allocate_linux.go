package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// allocate reserves an address of each range set, or none.
func (h *held) allocate(c *config, id, ifName string) (_ []*types100.IPConfig, err error) {
	holder := holderOf(id, ifName)
	var ips []*types100.IPConfig
	var mine []netip.Addr
	defer func() {
		if err != nil {
			_, undone := h.releaseAll(mine, strings.TrimSpace(holder))
			err = errors.Join(err, undone)
		}
	}()
	wanted := slices.Clone(c.requested)
	for i, set := range c.sets {
		var addr netip.Addr
		at := slices.IndexFunc(wanted, func(a netip.Addr) bool { _, ok := set.find(a); return ok })
		if at >= 0 {
			addr = wanted[at]
			wanted = slices.Delete(wanted, at, at+1)
			err = h.reserveRequested(set, addr, holder)
		} else {
			addr, err = h.reserveNext(set, i, mine, id, holder)
		}
		if err != nil {
			return nil, fmt.Errorf("range set %d: %w", i, err)
		}
		mine = append(mine, addr)
		if err := h.setLastReserved(i, addr); err != nil {
			return nil, err
		}
		r, _ := set.find(addr)
		ips = append(ips, ipConfig(addr, r))
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("requested addresses are in no range set, or more than one is in the same: %v", wanted)
	}
	return ips, nil
}

func (h *held) reserveRequested(set rangeSet, addr netip.Addr, holder string) error {
	if r, _ := set.find(addr); r.gateway == addr {
		return fmt.Errorf("the requested address %s is the gateway's", addr)
	}
	ok, err := h.reserve(addr, holder)
	if err == nil && !ok {
		return fmt.Errorf("the requested address %s is in use, see the file of that name in %s", addr, h.path)
	}
	return err
}

// reserveNext reserves the next free address of a set. If the attachment already
// has an address in the set, except from this call, it was not deleted, and the
// specification forbids a second ADD.
func (h *held) reserveNext(set rangeSet, i int, mine []netip.Addr, id, holder string) (netip.Addr, error) {
	for _, addr := range h.memo.heldBy(id, strings.TrimSpace(holder)) {
		if _, ok := set.find(addr); !ok || slices.Contains(mine, addr) {
			continue
		}
		// The index may have missed that the file was removed or rewritten.
		content, err := readFile(h.file(addr.String()))
		if content = strings.TrimSpace(content); err == nil && (content == strings.TrimSpace(holder) || content == strings.TrimSpace(id)) {
			return netip.Addr{}, fmt.Errorf("container %q has the address %s already, and no second ADD is allowed: "+
				"run DEL first, which removes the file %s/%s", id, addr, h.path, addr)
		}
	}
	last := h.lastReserved(i)
	for _, certain := range []bool{false, true} {
		if certain {
			// Addresses that seem to be taken may be stale in the index too.
			h.memo.forget()
			if err := h.memo.refresh(h.path); err != nil {
				return netip.Addr{}, err
			}
		}
		for addr := range set.after(last) {
			if _, taken := h.memo.entries[addr]; taken {
				continue
			}
			if ok, err := h.reserve(addr, holder); err != nil || ok {
				return addr, err
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("no address of the range set %s is free: each has a file in %s", set, h.path)
}

// releaseAll removes those of the address files that belong to the holder, and
// returns their number.
func (h *held) releaseAll(addrs []netip.Addr, holder string) (released int, err error) {
	var errs []error
	for _, addr := range addrs {
		ok, err := h.releaseIf(addr, strings.TrimSpace(holder))
		if ok {
			released++
		}
		errs = append(errs, err)
	}
	return released, errors.Join(errs...)
}

// releaseHeld removes all address files of the holder that the index knows. If
// there never were any, it removes those that contain only the container's ID,
// as a version without interface names wrote them.
func (h *held) releaseHeld(before int, id, holder string) error {
	released, err := h.releaseAll(slices.Clone(h.memo.holders[strings.TrimSpace(holder)]), holder)
	if before+released > 0 || err != nil {
		return err
	}
	old := strings.TrimSpace(id)
	if old == "" {
		return nil // an empty file belongs to nobody
	}
	_, err = h.releaseAll(slices.Clone(h.memo.holders[old]), old)
	return err
}

// heldBy returns the addresses of a holder, and of the container without an
// interface name.
func (x *index) heldBy(id, holder string) []netip.Addr {
	all := slices.Clone(x.holders[strings.TrimSpace(holder)])
	if old := strings.TrimSpace(id); old != "" {
		all = append(all, x.holders[old]...)
	}
	return all
}

// hasFree reports whether an address of the set has no file.
func (x *index) hasFree(set rangeSet) bool {
	for addr := range set.after(netip.Addr{}) {
		if _, taken := x.entries[addr]; !taken {
			return true
		}
	}
	return false
}
