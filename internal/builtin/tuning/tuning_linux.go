package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "tuning".
type Plugin struct {
	allowlist string // the file; empty means that of the reference plugin
}

// defaultAllowlist says which sysctls may be set. If it is missing, all may.
const defaultAllowlist = "/etc/cni/tuning/allowlist.conf"

// Add writes the sysctls and changes the interface. What the interface had is
// kept before.
func (p Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.parse(ctx, r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained()
	if err != nil {
		return nil, err
	}
	if err := writeSysctls(r, c.sysctls); err != nil {
		return nil, err
	}
	if err := noteSet(ctx, c); err != nil {
		return nil, err
	}
	if !c.attributes.any() {
		return result, nil
	}
	nl, link, err := find(r)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	if err := saveBackup(backupFile(c.dataDir, r.ContainerID, r.IfName), backupOf(stateOf(link), c.attributes)); err != nil {
		return nil, err
	}
	if err := change(nl, link, c.attributes); err != nil {
		return nil, fmt.Errorf("interface %q: %w", r.IfName, err)
	}
	if c.attributes.mac != nil {
		for _, i := range result.Interfaces {
			if i.Name == r.IfName && i.Sandbox != "" {
				i.Mac = c.macText
			}
		}
	}
	return result, nil
}

// Del puts back what the interface had. Where it cannot, as there is no such
// interface in the container, or not all of it, the file stays: the runtime's
// sweep tries again where it finds the interface by then.
func (p Plugin) Del(ctx context.Context, r *plugin.Request) (err error) {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	// A configuration that Add refused must not be in the way of what is in front
	// of it in the chain; all that is needed of it is where the backup is.
	dir, err := dataDir(r)
	if err != nil {
		return err
	}
	file := backupFile(dir, r.ContainerID, r.IfName)
	if !Pending(file) || r.Container == nil {
		return nil
	}
	nl, link, err := find(r)
	if links.NotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer nl.Close()
	return Undo(nl, link, file)
}

// Undo puts back what the file says that the interface had, and deletes the file.
func Undo(nl *netlink.Handle, link netlink.Link, file string) error {
	b, found, err := loadBackup(file)
	if err != nil {
		return err
	}
	if found {
		if err := restore(nl, link, b); err != nil {
			return fmt.Errorf("interface %q, what it had before: %w", link.Attrs().Name, err)
		}
	}
	return Discard(file)
}

// parse reads the configuration and checks its sysctls.
func (p Plugin) parse(ctx context.Context, r *plugin.Request) (*config, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	c, err := parse(r)
	if err != nil || len(c.sysctls) == 0 {
		return c, err
	}
	file := p.allowlist
	if file == "" {
		file = defaultAllowlist
	}
	text, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("which sysctls are allowed: %w", err)
	}
	list, err := parseAllowlist(string(text))
	if err == nil {
		err = allowed(list, c.sysctls)
	}
	if err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "%s: %w", file, err)
	}
	return c, nil
}

func writeSysctls(r *plugin.Request, sysctls []sysctl) error {
	if len(sysctls) == 0 {
		return nil
	}
	return r.Container.Do(func() error {
		for _, s := range sysctls {
			if err := os.WriteFile(s.file, []byte(s.value), 0o644); err != nil {
				return fmt.Errorf("set sysctl %q to %q: %w", s.key, s.value, err)
			}
		}
		return nil
	})
}

// find opens a socket in the container, which the caller closes.
func find(r *plugin.Request) (*netlink.Handle, netlink.Link, error) {
	nl, err := links.Open(r.Container)
	if err != nil {
		return nil, nil, err
	}
	link, err := nl.LinkByName(r.IfName)
	if err != nil {
		nl.Close()
		return nil, nil, fmt.Errorf("interface %q: %w", r.IfName, err)
	}
	return nl, link, nil
}

// stateOf reads the flags that were set. An interface can be in promiscuous mode
// without, for a sniffer, which is not the container's business.
func stateOf(link netlink.Link) state {
	a := link.Attrs()
	return state{
		mac: a.HardwareAddr, promisc: a.RawFlags&unix.IFF_PROMISC != 0, mtu: a.MTU,
		allmulti: a.RawFlags&unix.IFF_ALLMULTI != 0, txQLen: a.TxQLen,
	}
}

// change makes the interface have the attributes.
func change(nl *netlink.Handle, link netlink.Link, a attributes) error {
	if a.mac != nil {
		if err := nl.LinkSetHardwareAddr(link, a.mac); err != nil {
			return fmt.Errorf("set mac to %s: %w", a.mac, err)
		}
	}
	if a.promisc {
		if err := nl.SetPromiscOn(link); err != nil {
			return fmt.Errorf("set promisc: %w", err)
		}
	}
	if a.mtu != 0 {
		if err := nl.LinkSetMTU(link, a.mtu); err != nil {
			return fmt.Errorf("set mtu to %d: %w", a.mtu, err)
		}
	}
	if a.allmulti != nil {
		if err := setAllmulti(nl, link, *a.allmulti); err != nil {
			return err
		}
	}
	if a.txQLen != nil {
		if err := nl.LinkSetTxQLen(link, *a.txQLen); err != nil {
			return fmt.Errorf("set txQLen to %d: %w", *a.txQLen, err)
		}
	}
	return nil
}

func setAllmulti(nl *netlink.Handle, link netlink.Link, on bool) error {
	set := nl.LinkSetAllmulticastOff
	if on {
		set = nl.LinkSetAllmulticastOn
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set allmulti to %v: %w", on, err)
	}
	return nil
}

// restore puts back as much as it can.
func restore(nl *netlink.Handle, link netlink.Link, b backup) error {
	var errs []error
	a := attributes{mtu: b.Mtu, allmulti: b.Allmulti, txQLen: b.TxQLen}
	if b.Mac != "" {
		mac, err := net.ParseMAC(b.Mac)
		a.mac = mac
		errs = append(errs, err)
	}
	if b.Promisc != nil && !*b.Promisc {
		errs = append(errs, nl.SetPromiscOff(link))
	}
	a.promisc = b.Promisc != nil && *b.Promisc
	for _, part := range []attributes{
		{mac: a.mac}, {promisc: a.promisc}, {mtu: a.mtu}, {allmulti: a.allmulti}, {txQLen: a.txQLen},
	} {
		errs = append(errs, change(nl, link, part))
	}
	return errors.Join(errs...)
}

// Status refuses a configuration that every Add refuses.
func (p Plugin) Status(ctx context.Context, r *plugin.Request) error {
	_, err := p.parse(ctx, r)
	return err
}
