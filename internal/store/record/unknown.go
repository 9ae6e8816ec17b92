package record

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// members are the fields of a JSON object that this version does not know. A
// later version wrote them, and must find them when this one rewrites the
// record.
type members map[string]json.RawMessage

// keeper is a struct that keeps the fields of its JSON which it lacks.
type keeper interface{ kept() *members }

func (r *Record) kept() *members     { return &r.unknown }
func (n *NetNS) kept() *members      { return &n.unknown }
func (a *Attachment) kept() *members { return &a.unknown }
func (p *Plugin) kept() *members     { return &p.unknown }

// Inherit takes over the unknown fields of an earlier record of the container.
// Networks keep theirs when they are copied.
func (r *Record) Inherit(from *Record) {
	r.unknown, r.later = from.unknown, from.later
	if r.NetNS.Dev == from.NetNS.Dev && r.NetNS.Ino == from.NetNS.Ino {
		r.NetNS.unknown = from.NetNS.unknown
	}
}

// isList reports whether a value is a list of keepers.
func isList(v reflect.Value) bool {
	return v.Kind() == reflect.Slice && reflect.PointerTo(v.Type().Elem()).Implements(reflect.TypeFor[keeper]())
}

// nameOf returns the name of a struct's field in JSON; empty if it is not there.
func nameOf(v reflect.Value, i int) string {
	name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
	return name
}

// decodeEach is json.Unmarshal, but reads keepers field by field: one of another type does
// not hide the others. As in package json, the case of names does not matter. The keepers
// keep what they lack.
func decodeEach(data []byte, v reflect.Value) error {
	if isList(v) {
		var parts []json.RawMessage
		err := json.Unmarshal(data, &parts)
		for i, part := range parts {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			err = joined.Errors(err, decodeEach(part, v.Index(i)))
		}
		return err
	}
	k, ok := v.Addr().Interface().(keeper)
	if !ok {
		return json.Unmarshal(data, v.Addr().Interface())
	}
	var all members
	err := json.Unmarshal(data, &all)
	for i := range v.NumField() {
		name := nameOf(v, i)
		for member, value := range all {
			if name != "" && strings.EqualFold(member, name) {
				err = joined.Errors(err, decodeEach(value, v.Field(i)))
				delete(all, member)
			}
		}
	}
	if len(all) > 0 {
		*k.kept() = all
	}
	return err
}

// encodeWhole is json.Marshal, with what the keepers in a value keep.
func encodeWhole(v reflect.Value) (json.RawMessage, error) {
	if isList(v) {
		parts := make([]json.RawMessage, v.Len())
		var err error
		for i := range parts {
			part, perr := encodeWhole(v.Index(i))
			parts[i], err = part, joined.Errors(err, perr)
		}
		if err != nil {
			return nil, err
		}
		return json.Marshal(parts)
	}
	data, err := json.Marshal(v.Addr().Interface())
	k, ok := v.Addr().Interface().(keeper)
	if !ok || err != nil {
		return data, err
	}
	all := members{}
	err = json.Unmarshal(data, &all)
	for i := range v.NumField() {
		name := nameOf(v, i)
		if _, there := all[name]; there && name != "" {
			var ferr error
			all[name], ferr = encodeWhole(v.Field(i))
			err = joined.Errors(err, ferr)
		}
	}
	for member, value := range *k.kept() {
		all[member] = value
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(all)
}
