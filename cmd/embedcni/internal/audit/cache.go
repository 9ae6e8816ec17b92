package audit

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/netns"
)

// cachedResult is a container in libcni's cache that is on no record.
type cachedResult struct {
	file, network, ifName, netns string
	addresses                    []netip.Addr
	interfaces                   []string // of the host
	alive                        bool
}

// readCache takes in libcni's cache.
func (a *auditor) readCache(stateDir string) {
	dir := filepath.Join(stateDir, "results")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.unread("cached result", dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			continue
		case err != nil:
			a.unread("cached result", path, err)
			continue
		}
		a.cache(path, data)
	}
}

// cache takes in a file of libcni's cache. Versions 0.3.1 and later have the result in it.
func (a *auditor) cache(path string, data []byte) {
	var c struct {
		ContainerID, IfName, NetworkName, NetNS string
		Config                                  []byte
		Result                                  struct {
			Interfaces []struct{ Name, Sandbox string }
			IPs        []struct{ Address string }
		}
	}
	if err := json.Unmarshal(data, &c); err != nil {
		a.unread("cached result", path, err)
		return
	}
	if c.ContainerID == "" {
		return // of a libcni before 0.8, which names no container
	}
	r := cachedResult{file: path, network: c.NetworkName, ifName: c.IfName, netns: c.NetNS}
	for _, i := range c.Result.Interfaces {
		if i.Sandbox == "" {
			r.interfaces = append(r.interfaces, i.Name)
		}
	}
	for _, ip := range c.Result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil {
			r.addresses = append(r.addresses, p.Addr())
		}
	}
	var list struct{ Plugins []json.RawMessage }
	if json.Unmarshal(c.Config, &list) == nil {
		for _, p := range list.Plugins {
			a.readPlugin(p)
		}
	}
	if a.recorded[c.ContainerID] {
		return
	}
	if h, err := netns.Open(c.NetNS); err == nil {
		r.alive = true
		if err := h.Close(); err != nil {
			a.unread("namespace", c.NetNS, err)
		}
	}
	a.namespaces[c.NetNS] = a.namespaces[c.NetNS] || r.alive
	a.cached[c.ContainerID] = r
	a.hash(c.NetworkName, c.ContainerID)
}

// judgeCached adds the containers that only libcni's cache has.
func (a *auditor) judgeCached() {
	for id, c := range a.cached {
		a.claim(Finding{Kind: "cached result", Object: c.file, ContainerID: id, Network: c.network, IfName: c.ifName,
			Detail: "its container is on no record, and namespace " + c.netns + " is gone"})
	}
}
