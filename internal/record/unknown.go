package record

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
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
	r.unknown = from.unknown
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
			err = errors.Join(err, decodeEach(part, v.Index(i)))
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
				err = errors.Join(err, decodeEach(value, v.Field(i)))
				delete(all, member)
			}
		}
	}
	if len(all) > 0 {
		*k.kept() = all
	}
	return err
}

// whole encodes a struct as package json does, with the fields that it lacks.
func whole(plain any, lacks members) ([]byte, error) {
	data, err := json.Marshal(plain)
	if len(lacks) == 0 || err != nil {
		return data, err
	}
	all := maps.Clone(lacks)
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// MarshalJSON encodes the record with the fields that this version does not know.
func (r Record) MarshalJSON() ([]byte, error) {
	type plain Record
	return whole(plain(r), r.unknown)
}

// MarshalJSON is that of Record.
func (n NetNS) MarshalJSON() ([]byte, error) {
	type plain NetNS
	return whole(plain(n), n.unknown)
}

// MarshalJSON is that of Record.
func (a Attachment) MarshalJSON() ([]byte, error) {
	type plain Attachment
	return whole(plain(a), a.unknown)
}

// MarshalJSON is that of Record.
func (p Plugin) MarshalJSON() ([]byte, error) {
	type plain Plugin
	return whole(plain(p), p.unknown)
}
