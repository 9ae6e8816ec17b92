package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the sysctls and the interface are as this plugin
// has set them, except for those that a later plugin has set again.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return compare.Check(ctx, r, p) }

// Compare compares the sysctls and the attributes of the interface with the values
// that this plugin has set, except for those that a later plugin has set again. All
// are in the container, which may have changed them on purpose. Compare ignores the
// allowlist, which is for future settings; a Fix obeys it.
func (p Plugin) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
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
		return append(found, compare.Difference{
			Kind: compare.Interface, Inside: true, Object: r.IfName, Wanted: "an interface to change", Err: err,
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
func (p Plugin) compareSysctls(r *plugin.Request, sysctls []sysctl) (found []compare.Difference, err error) {
	if len(sysctls) == 0 {
		return nil, nil
	}
	err = r.Container.Do(func() error {
		for _, s := range sysctls {
			want := canonical(s.value)
			d := compare.Difference{Kind: compare.Sysctl, Inside: true, Object: s.key, Wanted: want}
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
func compareAttributes(r *plugin.Request, has attributes, want []attribute) (found []compare.Difference) {
	now := make(map[string]string)
	for _, a := range has.list() {
		now[a.name] = a.value
	}
	for _, a := range want {
		is := now[a.name]
		if is == a.value {
			continue
		}
		found = append(found, compare.Difference{
			Kind: compare.Interface, Inside: true,
			Object: a.name + " of " + r.IfName, Wanted: a.value, Found: is,
			Err: fmt.Errorf("interface %q: %s is %v, and not %v as configured", r.IfName, a.name, is, a.value),
			Fix: func(ctx context.Context) error { // the backup of the former value is the ADD's
				return on(ctx, r, func(conn *links.Conn, link links.Link) error { return set(conn, link, a) })
			},
		})
	}
	return found
}
