package netconf

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/embedcni/cni/internal/store/conflist"
)

// object is a JSON object whose keys stay in order.
type object []member

type member struct {
	key   string
	value any
}

// set adds a member.
func (o *object) set(key string, value any) { *o = append(*o, member{key, value}) }

// typeOf returns the type of an IPAM plugin.
func typeOf(ipam IPAM) string {
	raw, ok := ipam.(RawIPAM)
	if !ok {
		return conflist.HostLocal
	}
	var conf struct{ Type string }
	_ = json.Unmarshal(raw, &conf) // a type that is no string is the plugin's to refuse
	return conf.Type
}

// declare adds the capabilities that plugins of these types read, unless extra sets them.
// A plugin gets none of the capabilities of a Setup that its configuration does not declare.
func (o *object) declare(extra map[string]any, types ...string) {
	if _, set := extra["capabilities"]; set {
		return
	}
	all := map[string]bool{} // rendered in the order of its keys
	for _, typ := range types {
		for _, c := range conflist.Known(typ).Capabilities {
			all[c] = true
		}
	}
	if len(all) > 0 {
		o.set("capabilities", all)
	}
}

// fields adds the fields of a struct that have a key in their tag, unless they are zero,
// which is the plugin's default.
func (o *object) fields(of any) {
	v := reflect.ValueOf(of)
	for i := range v.NumField() {
		if key, ok := v.Type().Field(i).Tag.Lookup("cni"); ok && !v.Field(i).IsZero() {
			o.set(key, v.Field(i).Interface())
		}
	}
}

// extend adds the fields that have no name in this package, in alphabetical order.
func (o *object) extend(extra map[string]any) error {
	for _, key := range slices.Sorted(maps.Keys(extra)) {
		if slices.ContainsFunc(*o, func(m member) bool { return m.key == key }) {
			return fmt.Errorf("field Extra sets %q, which is set already", key)
		}
		o.set(key, extra[key])
	}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, m := range o {
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
		key, _ := json.Marshal(m.key) // never fails
		if i > 0 {
			b = append(b, ',')
		}
		b = slices.Concat(b, key, []byte{':'}, value)
	}
	return append(b, '}'), nil
}
