// Package conflist reads network configurations: one plugin (.conf, .json), a
// list of plugins (.conflist), or a directory of either. The returned configurations
// are complete and valid, and hold every value as written, to the byte. A table says what
// is known of the types of plugins.
package conflist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// maxName leaves room for a container ID and an interface name in the file
// name of libcni's cache, which most file systems bound at 255 bytes.
const maxName = 180

// Parse reads a list of plugins:
//
//	{"cniVersion": "1.1.0", "name": "podnet", "plugins": [{"type": "bridge"}]}
//
// The list may lack plugins when they are in a directory beside the file (see
// ReadList); then Plugins is empty. Plugins[i].Bytes is the plugin's object to
// the byte, not as libcni would write it: libcni passes integers through float64
// and changes those above 2^53. An error of encoding/json has the line and the column.
func Parse(data []byte) (*libcni.NetworkConfigList, error) {
	list, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return nil, locatedInList(data, err)
	}
	var keys map[string]json.RawMessage
	var plugins []json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, fmt.Errorf("error parsing configuration list: %w", err)
	}
	_ = json.Unmarshal(keys["plugins"], &plugins) // libcni has read as many; there may be none
	for i := range list.Plugins {
		list.Plugins[i].Bytes = plugins[i]
	}
	if list.CNIVersion, err = selectVersion(keys["cniVersion"], keys["cniVersions"]); err != nil {
		return nil, err
	}
	return list, validate(list)
}

// ParseSingle reads the configuration of a single plugin and makes a list of it:
//
//	{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge"}
func ParseSingle(data []byte) (*libcni.NetworkConfigList, error) {
	if _, err := libcni.NetworkPluginConfFromBytes(data); err != nil {
		return nil, Located(data, err)
	}
	list, err := wrapSingle(data)
	if err != nil {
		return nil, err
	}
	return Parse(list)
}

// wrapSingle writes the list around a plugin's object. The list's name and version are
// copied from the plugin, as in libcni, and cniVersions too, which libcni omits.
func wrapSingle(data []byte) ([]byte, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, fmt.Errorf("error parsing configuration: %w", err)
	}
	var b bytes.Buffer
	b.WriteByte('{')
	for _, key := range []string{"cniVersion", "cniVersions", "disableCheck", "disableGC", "name"} {
		raw, ok := keys[key]
		if !ok && (key == "cniVersion" || key == "name") {
			raw, ok = json.RawMessage(`""`), true
		}
		if ok {
			fmt.Fprintf(&b, "%q:%s,", key, raw)
		}
	}
	b.WriteString(`"plugins":[`)
	b.Write(bytes.TrimSpace(data))
	b.WriteString("]}")
	return b.Bytes(), nil
}

// selectVersion returns the highest version that the configuration offers and
// this library knows, as the specification's "version considerations" require. A
// configuration that names none has version 0.1.0 and keeps its empty string.
func selectVersion(one, many json.RawMessage) (string, error) {
	var offered []string
	var single string
	_ = json.Unmarshal(many, &offered) // libcni has refused what is none
	_ = json.Unmarshal(one, &single)
	if single != "" {
		offered = append(offered, single)
	}
	if len(offered) == 0 {
		return "", nil
	}
	known := version.All.SupportedVersions()
	for _, v := range slices.Backward(known) {
		if slices.Contains(offered, v) {
			return v, nil
		}
	}
	return "", fmt.Errorf("error parsing configuration: no version of %s is known here (%s)",
		strings.Join(offered, ", "), strings.Join(known, ", "))
}

// validate checks a configuration against the specification's section 1, and
// returns all errors rather than the first. It accepts an empty name, as libcni
// does; see [RequireName].
func validate(list *libcni.NetworkConfigList) error {
	var errs []error
	if list.Name != "" {
		errs = append(errs, ValidateName(list.Name))
	}
	for i, plugin := range list.Plugins {
		if err := validatePlugin(plugin); err != nil {
			errs = append(errs, fmt.Errorf("plugin %d: %w", i, err))
		}
	}
	return joined.Errors(errs...)
}

// RequireName refuses a list whose network has no name. Such a list can be
// loaded, but no container can be attached to it.
func RequireName(list *libcni.NetworkConfigList) error {
	if list.Name == "" {
		return errors.New(`the network has no name: set "name"`)
	}
	return nil
}

// ValidateName checks a network's name: a letter or digit, then letters,
// digits, '_', '.', '-' (CNI specification 1.1.0, section 1), and at most 180
// bytes, because the name becomes part of file names.
func ValidateName(name string) error {
	if name == "" { // utils would say "missing network name:"
		return types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if err := utils.ValidateNetworkName(name); err != nil {
		return err
	}
	if len(name) > maxName {
		return fmt.Errorf("network name of %d bytes is too long: %d are allowed", len(name), maxName)
	}
	return nil
}

// validatePlugin checks the types as libcni reads them and as the plugin will:
// JSON keys of Go programs match in any case, and of duplicate keys libcni takes
// the last in alphabetical order, the plugin the last in the file.
func validatePlugin(plugin *libcni.PluginConfig) error {
	var named struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	// libcni refuses a value of another type. It reads the last value of a
	// duplicate key; encoding/json continues after the first.
	var other *json.UnmarshalTypeError
	if err := json.Unmarshal(plugin.Bytes, &named); err != nil && !errors.As(err, &other) {
		return fmt.Errorf("error parsing configuration: %w", err)
	}
	for _, typ := range []string{plugin.Network.Type, named.Type} {
		if err := validateType("type", typ); err != nil {
			return err
		}
	}
	for _, typ := range []string{plugin.Network.IPAM.Type, named.IPAM.Type} {
		if typ == "" {
			continue
		}
		if err := validateType("ipam.type", typ); err != nil {
			return err
		}
	}
	return nil
}

// validateType ensures that a plugin's type is a file name: it is joined to the
// plugin directories and executed, by the runtime or by a plugin that delegates.
func validateType(key, typ string) error {
	switch {
	case typ == "":
		return fmt.Errorf("error parsing configuration: missing '%s'", key)
	case typ == "." || typ == "..", strings.ContainsAny(typ, "/\\\x00"):
		return fmt.Errorf("%s %q is not a file name", key, typ)
	}
	return nil
}

// Declares reports whether a plugin of the list takes a capability.
func Declares(list *libcni.NetworkConfigList, capability string) bool {
	return slices.ContainsFunc(list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[capability] })
}

// Equal reports whether two configurations have the same name, version and bytes,
// those of each plugin included.
func Equal(a, b *libcni.NetworkConfigList) bool {
	return a.Name == b.Name && a.CNIVersion == b.CNIVersion && bytes.Equal(a.Bytes, b.Bytes) &&
		slices.EqualFunc(a.Plugins, b.Plugins, func(a, b *libcni.PluginConfig) bool { return bytes.Equal(a.Bytes, b.Bytes) })
}
