package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
)

// ErrInvalid is the error of a configuration that a plugin or a runtime would refuse. The
// text names the field.
var ErrInvalid = errors.New("invalid network configuration")

// DefaultVersion is the version of a configuration that names none.
const DefaultVersion = "1.0.0"

// Network is the configuration of a network.
type Network struct {
	// Name is a letter or digit, then letters, digits, '_', '.' and '-'; at most 180
	// bytes. Records and host-local's files are named after it.
	Name string
	// Version is that of the CNI specification, from which the plugins' requests and
	// results follow: "0.4.0", "1.0.0" or "1.1.0"; empty is [DefaultVersion]. Plugins are
	// asked for STATUS and GC from 1.1.0 on.
	Version string
	// DisableCheck and DisableGC leave out these verbs.
	DisableCheck bool `cni:"disableCheck"`
	DisableGC    bool `cni:"disableGC"`
	// Plugins are run in this order. At most one makes an interface: a Bridge or a PTP.
	// Those that change it come behind.
	Plugins []Plugin
	// Extra are further fields of the list, such as a runtime's labels.
	Extra map[string]any
}

// Plugin is the configuration of one plugin: Bridge, PTP, Firewall, [PortMap], Bandwidth,
// Tuning or Raw.
type Plugin interface {
	// render validates the configuration and returns what is its JSON.
	render(n Network) (any, error)
}

// Render returns the configuration as JSON, the same for the same Network. It is valid
// and complete: a range without a subnet is an error (see Dir). Errors wrap [ErrInvalid].
func (n Network) Render() ([]byte, error) {
	data, err := n.render()
	if err != nil {
		return nil, fmt.Errorf("network %q: %w: %w", n.Name, ErrInvalid, err)
	}
	return data, nil
}

func (n Network) render() ([]byte, error) {
	if n.Version == "" {
		n.Version = DefaultVersion
	}
	if err := joined.Errors(conflist.ValidateName(n.Name), n.validateVersion(), n.validateOrder()); err != nil {
		return nil, err
	}
	var o object
	o.set("cniVersion", n.Version)
	o.set("name", n.Name)
	o.fields(n)
	var plugins []any
	var errs []error
	for i, p := range n.Plugins {
		rendered, err := p.render(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("plugin %d: %w", i, err))
		}
		plugins = append(plugins, rendered)
	}
	o.set("plugins", plugins)
	errs = append(errs, o.extend(n.Extra))
	if err := joined.Errors(errs...); err != nil {
		return nil, err
	}
	plain, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, plain, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	if _, err := conflist.Parse(b.Bytes()); err != nil { // Extra and Raw may have anything
		return nil, err
	}
	return b.Bytes(), nil
}

func (n Network) validateVersion() error {
	if !slices.Contains([]string{"0.4.0", "1.0.0", "1.1.0"}, n.Version) {
		return fmt.Errorf(`field Version is %q: it must be "0.4.0", "1.0.0" or "1.1.0"`, n.Version)
	}
	return nil
}

// validateOrder checks that one plugin makes an interface, and that those which change it
// come later. Nobody knows what the plugin of a Raw does.
func (n Network) validateOrder() error {
	if len(n.Plugins) == 0 {
		return errors.New("there are no Plugins")
	}
	var made, raw bool
	for i, p := range n.Plugins {
		switch p.(type) {
		case Raw:
			raw = true
		case Bridge, PTP:
			if made {
				return fmt.Errorf("plugin %d makes an interface, and one before it does too", i)
			}
			made = true
		case nil:
			return fmt.Errorf("plugin %d is nil", i)
		default:
			if !made && !raw {
				return fmt.Errorf("plugin %d changes an interface, and none before it makes one", i)
			}
		}
	}
	return nil
}

// Raw is the configuration of any plugin, as a JSON object with a "type".
type Raw json.RawMessage

func (r Raw) render(Network) (any, error) {
	if !bytes.HasPrefix(bytes.TrimLeft(r, " \t\r\n"), []byte("{")) {
		return nil, errors.New("the plugin's Raw is no JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(r))
	var o json.RawMessage
	if err := dec.Decode(&o); err != nil {
		return nil, fmt.Errorf("plugin's Raw: %w", conflist.Located(r, err))
	}
	if dec.More() {
		return nil, errors.New("the plugin's Raw has something behind its object")
	}
	return o, nil
}
