package record

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// members are the fields of a JSON object that this version does not know. A
// later version wrote them, and must find them when this one rewrites the
// record.
type members map[string]json.RawMessage

// Inherit takes over the unknown fields of an earlier record of the container.
// Networks keep theirs when they are copied.
func (r *Record) Inherit(from *Record) {
	r.unknown = from.unknown
	if r.NetNS.Dev == from.NetNS.Dev && r.NetNS.Ino == from.NetNS.Ino {
		r.NetNS.unknown = from.NetNS.unknown
	}
}

// unmarshal is json.Unmarshal, and keeps unknown members.
func (r *Record) unmarshal(data []byte) error {
	if err := json.Unmarshal(data, r); err != nil {
		return err
	}
	var parts struct {
		NetNS    json.RawMessage
		Networks []json.RawMessage
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	r.unknown = unknownIn(data, *r)
	r.NetNS.unknown = unknownIn(parts.NetNS, r.NetNS)
	for i := range r.Attachments {
		r.Attachments[i].findUnknown(parts.Networks[i])
	}
	return nil
}

func (n *Attachment) findUnknown(data []byte) {
	n.unknown = unknownIn(data, *n)
	var parts struct{ Plugins []json.RawMessage }
	_ = json.Unmarshal(data, &parts) // already decoded once without an error
	for i := range n.Plugins {
		n.Plugins[i].unknown = unknownIn(parts.Plugins[i], n.Plugins[i])
	}
}

// unknownIn returns the fields of a JSON object that the struct lacks, or nil.
// As in package json, the case of names does not matter.
func unknownIn(data []byte, of any) members {
	var all members
	if json.Unmarshal(data, &all) != nil {
		return nil
	}
	fields := reflect.TypeOf(of)
	for i := range fields.NumField() {
		name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
		maps.DeleteFunc(all, func(member string, _ json.RawMessage) bool { return strings.EqualFold(member, name) })
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// marshal is json.Marshal and adds the unknown members.
func (r *Record) marshal() (json.RawMessage, error) {
	parts := struct {
		*Record
		NetNS    json.RawMessage   `json:"netns"`
		Networks []json.RawMessage `json:"networks"`
	}{Record: r}
	var err error
	if parts.NetNS, err = r.NetNS.unknown.layBack(r.NetNS); err != nil {
		return nil, err
	}
	for i := range r.Attachments {
		n, err := r.Attachments[i].marshal()
		if err != nil {
			return nil, err
		}
		parts.Networks = append(parts.Networks, n)
	}
	return r.unknown.layBack(parts)
}

func (n *Attachment) marshal() (json.RawMessage, error) {
	parts := struct {
		*Attachment
		Plugins []json.RawMessage `json:"plugins,omitempty"`
	}{Attachment: n}
	for _, p := range n.Plugins {
		plugin, err := p.unknown.layBack(p)
		if err != nil {
			return nil, err
		}
		parts.Plugins = append(parts.Plugins, plugin)
	}
	return n.unknown.layBack(parts)
}

// HasUnknown reports whether the record contains fields of a later version that
// this version does not know.
func (r *Record) HasUnknown() bool {
	return r.unknown != nil || r.NetNS.unknown != nil || slices.ContainsFunc(r.Attachments, func(n Attachment) bool {
		return n.unknown != nil || slices.ContainsFunc(n.Plugins, func(p Plugin) bool { return p.unknown != nil })
	})
}

// layBack returns the JSON of a struct with the members appended to its fields.
func (m members) layBack(v any) (json.RawMessage, error) {
	data, err := json.Marshal(v)
	if err != nil || len(m) == 0 {
		return data, err
	}
	more, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(data) == len("{}") {
		return more, nil
	}
	data[len(data)-1] = ','
	return append(data, more[1:]...), nil
}
