package tuning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "tuning".
type Plugin struct {
	allowlist string // the file; empty means the reference plugin's
}

// defaultAllowlist lists the sysctls that may be set. If it is missing, all may.
const defaultAllowlist = "/etc/cni/tuning/allowlist.conf"

// Add writes the sysctls and changes the interface. It keeps the former
// attributes first.
func (p Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.parse(r)
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
	if c.attributes == (attributes{}) {
		return result, nil
	}
	err = on(ctx, r, func(conn *links.Conn, link links.Link) error {
		if err := saveBackup(backupFile(c.dataDir, r.ContainerID, r.IfName), stateOf(link).of(c.attributes)); err != nil {
			return err
		}
		return set(conn, link, c.attributes.list()...)
	})
	if err != nil {
		return nil, err
	}
	if c.attributes.Mac != "" {
		for _, i := range result.Interfaces {
			if i.Name == r.IfName && i.Sandbox != "" {
				i.Mac = c.macText
			}
		}
	}
	return result, nil
}

// Del restores the former state of the interface. If that fails, for example
// because the container has no such interface, the file stays, and the runtime's
// sweep tries again at the interface's new place.
func (p Plugin) Del(ctx context.Context, r *plugin.Request) error {
	// A configuration that Add refused must not stop the DEL of the plugins
	// before this one in the chain. Del reads only the directory of the backup
	// from it.
	file := File(r.Config, r.ContainerID, r.IfName)
	if !Pending(file) || r.Container == nil {
		return nil
	}
	var undone error // Undo may miss something itself
	err := on(ctx, r, func(conn *links.Conn, link links.Link) error {
		undone = Undo(conn, link, file)
		return undone
	})
	if undone == nil && links.NotFound(err) {
		return nil
	}
	return err
}

// Undo restores the state of the interface from the file, and deletes the file.
func Undo(conn *links.Conn, link links.Link, file string) error {
	b, found, err := loadBackup(file)
	if err != nil {
		return err
	}
	if !found {
		return Discard(file)
	}
	var errs []error // it restores as much as it can
	if b.Mac != "" {
		_, err := net.ParseMAC(b.Mac)
		errs = append(errs, err)
	}
	for _, a := range b.list() {
		errs = append(errs, a.set(conn, link.Index))
	}
	if err := joined.Errors(errs...); err != nil {
		return fmt.Errorf("interface %q, its earlier settings: %w", link.Name, err)
	}
	return Discard(file)
}

// parse reads the configuration and checks its sysctls.
func (p Plugin) parse(r *plugin.Request) (*config, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	return c, p.allow(c.sysctls)
}

// allow returns an error unless the administrator allows the sysctls.
func (p Plugin) allow(sysctls []sysctl) error {
	if len(sysctls) == 0 {
		return nil
	}
	file := cmp.Or(p.allowlist, defaultAllowlist)
	text, err := plainfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the allowed sysctls: %w", err)
	}
	if err := allowed(string(text), sysctls); err != nil {
		return plugin.Errorf(types.ErrInvalidNetworkConfig, "%s: %w", file, err)
	}
	return nil
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

// on calls do with the interface.
func on(ctx context.Context, r *plugin.Request, do func(*links.Conn, links.Link) error) error {
	return contract.On(ctx, r.Container, func(conn *links.Conn) error {
		link, err := conn.Link(r.IfName)
		if err != nil {
			return err
		}
		return do(conn, link)
	})
}

// stateOf reads the attributes that Add may change. Flags count only if they
// were set: a sniffer can put an interface into promiscuous mode without the
// flag, and the container has no part in that.
func stateOf(l links.Link) attributes {
	promisc, allmulti := l.Promiscuous(), l.Flags&unix.IFF_ALLMULTI != 0
	has := attributes{Promisc: &promisc, Mtu: l.MTU, Allmulti: &allmulti, TxQLen: &l.QueueLength}
	if slices.ContainsFunc(l.MAC, func(b byte) bool { return b != 0 }) { // lo has no address that could be restored
		has.Mac = l.MAC.String()
	}
	return has
}

// attribute is an attribute of an interface, and the change that gives it the value.
type attribute struct {
	name, value string
	change      links.Change
}

// list lists the attributes that have a value.
func (a attributes) list() (all []attribute) {
	add := func(name string, value any, change links.Change) {
		all = append(all, attribute{name, fmt.Sprint(value), change})
	}
	if mac, err := net.ParseMAC(a.Mac); err == nil {
		add("mac", mac, links.Change{MAC: mac})
	}
	if a.Promisc != nil {
		add("promisc", *a.Promisc, flag(unix.IFF_PROMISC, *a.Promisc))
	}
	if a.Mtu != 0 {
		add("mtu", a.Mtu, links.Change{MTU: a.Mtu})
	}
	if a.Allmulti != nil {
		add("allmulti", *a.Allmulti, flag(unix.IFF_ALLMULTI, *a.Allmulti))
	}
	if a.TxQLen != nil {
		add("txQLen", *a.TxQLen, links.Change{QueueLength: a.TxQLen})
	}
	return all
}

// set sets attributes, one after the other.
func set(conn *links.Conn, link links.Link, all ...attribute) error {
	for _, a := range all {
		if err := a.set(conn, link.Index); err != nil {
			return fmt.Errorf("interface %q: %w", link.Name, err)
		}
	}
	return nil
}

// set sets the attribute. The error names the one that the kernel refused.
func (a attribute) set(conn *links.Conn, index int) error {
	if err := conn.Change(index, a.change); err != nil {
		return fmt.Errorf("set %s to %v: %w", a.name, a.value, err)
	}
	return nil
}

// flag turns a flag on or off.
func flag(f uint32, on bool) links.Change {
	if on {
		return links.Change{Set: f}
	}
	return links.Change{Clear: f}
}

// Status refuses a configuration that every Add refuses.
func (p Plugin) Status(_ context.Context, r *plugin.Request) error {
	_, err := p.parse(r)
	return err
}

// Check returns an error unless the sysctls and the interface are as this plugin
// has set them, except for those that a later plugin has set again.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return contract.Check(ctx, r, p) }

// Compare compares the sysctls and the attributes of the interface with the values
// that this plugin has set, except for those that a later plugin has set again. All
// are in the container, which may have changed them on purpose. Compare ignores the
// allowlist, which is for future settings; a Fix obeys it.
func (p Plugin) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "there is no previous result")
	}
	sysctls, attributes := c.own(r, lastSet(ctx))
	found, err := p.compareSysctls(r, sysctls)
	if err != nil || len(attributes) == 0 {
		return found, err // a chain need not have an interface
	}
	link, err := v.Container.Link(r.IfName)
	if links.NotFound(err) {
		return append(found, contract.Difference{
			Kind: contract.Interface, Inside: true, Object: r.IfName, Wanted: "an interface to change", Err: err,
			Why: "tuning changes the interface of another plugin, and makes none",
		}), nil
	}
	if err != nil {
		return nil, err
	}
	return append(found, compareAttributes(r, stateOf(link), attributes)...), nil
}

// compareSysctls compares words and values, because the kernel has its own way to
// separate and print numbers.
func (p Plugin) compareSysctls(r *plugin.Request, sysctls []sysctl) (found []contract.Difference, err error) {
	if len(sysctls) == 0 {
		return nil, nil
	}
	err = r.Container.Do(func() error {
		for _, s := range sysctls {
			want := canonical(s.value)
			d := contract.Difference{Kind: contract.Sysctl, Inside: true, Object: s.key, Wanted: want}
			data, err := os.ReadFile(s.file)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				d.Err, d.Why = fmt.Errorf("sysctl %q: %w", s.key, err), "the container has no such sysctl now"
			case err != nil:
				return fmt.Errorf("sysctl %q: %w", s.key, err)
			default:
				if d.Found = canonical(string(data)); d.Found == want {
					continue
				}
				d.Err = fmt.Errorf("sysctl %q is %q, and not %q as configured", s.key, d.Found, want)
				d.Fix = func(context.Context) error { // if the administrator still allows it
					one := []sysctl{s}
					if err := p.allow(one); err != nil {
						return err
					}
					return writeSysctls(r, one)
				}
			}
			found = append(found, d)
		}
		return nil
	})
	return found, err
}

// compareAttributes compares an interface with the configuration. It ignores
// attributes that are not configured, or only turned off, because they were not set.
func compareAttributes(r *plugin.Request, has attributes, want []attribute) (found []contract.Difference) {
	now := make(map[string]string)
	for _, a := range has.list() {
		now[a.name] = a.value
	}
	for _, a := range want {
		is := now[a.name]
		if is == a.value {
			continue
		}
		found = append(found, contract.Difference{
			Kind: contract.Interface, Inside: true,
			Object: a.name + " of " + r.IfName, Wanted: a.value, Found: is,
			Err: fmt.Errorf("interface %q: %s is %v, and not %v as configured", r.IfName, a.name, is, a.value),
			Fix: func(ctx context.Context) error { // the backup of the former value is the ADD's
				return on(ctx, r, func(conn *links.Conn, link links.Link) error { return set(conn, link, a) })
			},
		})
	}
	return found
}
