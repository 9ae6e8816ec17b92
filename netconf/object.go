package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/embedcni/cni/internal/known"
)

// object is a JSON object whose keys stay in order.
type object []member

type member struct {
	key   string
	value any
}

// set adds a member.
func (o *object) set(key string, value any) { *o = append(*o, member{key, value}) }

// typ returns the object's "type", if it is a string.
func (o object) typ() (typ string) {
	i := slices.IndexFunc(o, func(m member) bool { return m.key == "type" })
	if i < 0 {
		return ""
	}
	if raw, ok := o[i].value.(json.RawMessage); ok {
		_ = json.Unmarshal(raw, &typ) // of a RawIPAM; a type that is no string is the plugin's to refuse
		return typ
	}
	typ, _ = o[i].value.(string)
	return typ
}

// declare adds the capabilities that plugins of these types read, unless extra sets them.
// A plugin gets none of the capabilities of a Setup that its configuration does not declare.
func (o *object) declare(extra map[string]any, types ...string) {
	if _, set := extra["capabilities"]; set {
		return
	}
	all := map[string]bool{} // rendered in the order of its keys
	for _, typ := range types {
		for _, c := range known.Of(typ).Capabilities {
			all[c] = true
		}
	}
	if len(all) > 0 {
		o.set("capabilities", all)
	}
}

// setIf adds a member unless it is the zero value, which is the plugin's default.
func setIf[T comparable](o *object, key string, value T) {
	if value != *new(T) {
		o.set(key, value)
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
	var b bytes.Buffer
	for i, m := range o {
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.key, err)
		}
		b.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	if len(o) == 0 {
		return []byte("{}"), nil
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
