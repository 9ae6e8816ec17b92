package sweep

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// address is a file of host-local: its name is the address, its content is the
// container ID and the interface name on two lines.
type address struct {
	dir, file, content string
}

func (a address) String() string { return "address " + a.file + " in " + a.dir }

// Remove deletes the file under host-local's own lock, if it still says what
// was found: the address may be another container's by now.
func (a address) Remove() (err error) {
	lock, err := disk.NewFileLock(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", a, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := lock.Lock(); err != nil {
		return fmt.Errorf("release %s: %w", a, err)
	}
	path := filepath.Join(a.dir, a.file)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(data) != a.content {
		return nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", a, err)
	}
	return nil
}

// addresses are the files of the container's interface in host-local's
// directories of the network.
func addresses(t Target) ([]Item, error) {
	var items []Item
	var errs []error
	for _, dir := range t.IPAMDirs {
		found, err := addressesIn(dir, t)
		items = append(items, found...)
		errs = append(errs, err)
	}
	return items, errors.Join(errs...)
}

func addressesIn(dir string, t Target) ([]Item, error) {
	names, err := candidates(dir, t)
	if err != nil {
		return nil, fmt.Errorf("addresses of container %s: %w", t.ContainerID, err)
	}
	var items []Item
	var errs []error
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// A plugin that was killed between creating the file and writing it
		// leaves one that says nothing, and that nobody ever releases.
		if holds(string(data), t.ContainerID, t.IfName) || t.Thorough && len(data) == 0 {
			items = append(items, address{dir: dir, file: name, content: string(data)})
		}
	}
	return items, errors.Join(errs...)
}

// Held are the addresses that host-local holds for the attachment in the
// target's directories, whatever is known of them otherwise.
func Held(t Target) ([]netip.Addr, error) {
	t.Thorough = true
	items, err := addresses(t)
	var held []netip.Addr
	for _, item := range items {
		a, ok := item.(address)
		if addr, err := netip.ParseAddr(a.file); ok && err == nil && a.content != "" {
			held = append(held, addr)
		}
	}
	return held, err
}

// Stale are the files in host-local's directory of a network that it holds for
// attachments which are gone. A directory that does not exist has none.
func Stale(dir string, gone func(id, ifName string) bool) ([]Item, error) {
	names, err := candidates(dir, Target{Thorough: true})
	if err != nil {
		return nil, fmt.Errorf("stale addresses: %w", err)
	}
	var items []Item
	var errs []error
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		id, ifName, ok := strings.Cut(strings.TrimSpace(string(data)), disk.LineBreak)
		if ok && gone(id, ifName) {
			items = append(items, address{dir: dir, file: name, content: string(data)})
		}
	}
	return items, errors.Join(errs...)
}

// candidates are the files to look into: those of the addresses that are known,
// or all where there may be more. Reading all costs what the network has
// containers, so it is not for every DEL.
func candidates(dir string, t Target) ([]string, error) {
	var names []string
	if !t.Thorough {
		for _, addr := range t.Addresses {
			names = append(names, addr.String())
		}
		return names, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if net.ParseIP(e.Name()) != nil { // not lock, nor last_reserved_ip.*
			names = append(names, e.Name())
		}
	}
	return names, err
}

// holds compares a file's content as host-local does; files of its earliest
// versions have no interface name.
func holds(content, id, ifName string) bool {
	content = strings.TrimSpace(content)
	return content == id+disk.LineBreak+ifName || content == id
}
