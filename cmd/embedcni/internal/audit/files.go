package audit

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/embedcni/cni/netns"
)

// reservations adds the addresses that host-local holds for containers on no record.
func (a *auditor) reservations() {
	for dataDir := range a.dataDirs {
		networks, err := os.ReadDir(dataDir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.unread("reservation", dataDir, err)
		}
		for _, n := range networks {
			if n.IsDir() {
				a.reservationsOf(filepath.Join(dataDir, n.Name()), n.Name())
			}
		}
	}
}

func (a *auditor) reservationsOf(dir, network string) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.unread("reservation", dir, err)
	}
	for _, f := range files {
		// The other files are the lock and the last address of each range.
		addr, err := netip.ParseAddr(strings.ReplaceAll(f.Name(), "_", ":"))
		if err != nil {
			continue
		}
		path := filepath.Join(dir, f.Name())
		data, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // released meanwhile
			continue
		case err != nil:
			a.unread("reservation", path, err)
			continue
		}
		id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), "\r\n")
		if !a.recorded[id] {
			a.reserved[addr] = id
			a.hash(network, id)
		}
		a.claim(Finding{Kind: "reservation", Object: addr.String() + " in " + dir, ContainerID: id, Network: network, IfName: ifName}, addr)
	}
}

// kept adds flannel's files for containers on no record. They do not say whether the container
// lives, and another program may have attached it.
func (a *auditor) kept() {
	for dir := range a.keptDirs {
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.unread("delegate", dir, err)
		}
		for _, f := range files {
			if !a.recorded[f.Name()] && f.Type().IsRegular() {
				a.add(Finding{Whose: Another, Kind: "delegate", Object: filepath.Join(dir, f.Name()), ContainerID: f.Name(),
					Detail: "flannel keeps it for a container on no record; delete it if the container is gone"})
			}
		}
	}
}

// namespaceFiles notes the namespaces that the library keeps alive, and of whose container
// the record is gone. A pin has the name of the record.
func (a *auditor) namespaceFiles(recordDir string) {
	pins, err := netns.List(filepath.Join(recordDir, "netns"))
	if err != nil {
		a.unread("namespace", filepath.Join(recordDir, "netns"), err)
	}
	for _, p := range pins {
		_, err := os.Lstat(filepath.Join(recordDir, filepath.Base(p.Path)+".json"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			a.strays = append(a.strays, p)
		case err != nil:
			a.unread("namespace", p.Path, err)
		default:
			a.namespaces[p.Path] = true
		}
	}
}
