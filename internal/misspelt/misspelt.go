// Package misspelt finds fields of a configuration that are probably misspelt: the
// reader does not know them, and they are spelt almost like one that it knows.
//
//	{"isGatway": true, "ipam": {"subnett": "10.1.0.0/24"}}  →  isGatway: isGateway,
//	                                                           ipam.subnett: ipam.subnet
//
// An unknown field without such a neighbour is none of them. It may be a comment, or
// belong to another program.
package misspelt

import (
	"encoding"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Names are the fields that an object can have, with the fields of their values. A
// value without Names can be anything.
type Names map[string]Names

// Of returns the fields of the type of v, as package encoding/json reads them. A type
// that decodes itself can be anything.
func Of(v any) Names { return namesOf(reflect.TypeOf(v)) }

var decoders = []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()}

func namesOf(t reflect.Type) Names {
	for t != nil && slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Array}, t.Kind()) {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct ||
		slices.ContainsFunc(decoders, func(d reflect.Type) bool { return reflect.PointerTo(t).Implements(d) }) {
		return nil
	}
	names := Names{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(names, namesOf(f.Type))
		case !f.IsExported(), f.Tag.Get("json") == "-":
		case name == "":
			names[f.Name] = namesOf(f.Type)
		default:
			names[name] = namesOf(f.Type)
		}
	}
	return names
}

// Field is a field that is probably misspelt, and the known one. Each has the names of
// the fields around it in front, with dots.
type Field struct{ Name, Nearest string }

// Find returns the fields of a value that are probably misspelt, in the order of their
// names. It ignores a value that is not valid JSON, which others refuse.
func Find(value json.RawMessage, known Names) []Field {
	return find(value, known, "")
}

func find(value json.RawMessage, known Names, at string) (found []Field) {
	if known == nil {
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(value, &list) == nil {
		for _, one := range list {
			found = append(found, find(one, known, at)...)
		}
		return found
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if same, ok := known.lookup(name); ok {
			found = append(found, find(fields[name], known[same], at+same+".")...)
		} else if nearest := known.nearest(name); nearest != "" {
			found = append(found, Field{Name: at + name, Nearest: at + nearest})
		}
	}
	return found
}

// lookup finds a name in any case, as encoding/json does.
func (known Names) lookup(name string) (string, bool) {
	if _, ok := known[name]; ok {
		return name, true
	}
	for _, k := range slices.Sorted(maps.Keys(known)) {
		if strings.EqualFold(k, name) {
			return k, true
		}
	}
	return "", false
}

// nearest returns the known name that a name is probably meant to be, or "".
func (known Names) nearest(name string) (nearest string) {
	if isPrivate(name) {
		return ""
	}
	best, exact := len(name)+1, 0
	for _, k := range slices.Sorted(maps.Keys(known)) {
		d := distance(strings.ToLower(k), strings.ToLower(name))
		// Two known names may differ in case alone.
		if e := distance(k, name); d <= most(k) && (d < best || d == best && e < exact && strings.EqualFold(k, nearest)) {
			nearest, best, exact = k, d, e
		}
	}
	return nearest
}

// isPrivate reports whether a name is made not to be a plugin's: a comment, "_mtu" or
// "//mtu", or an extension, "x-mtu" or "example.org/mtu".
func isPrivate(name string) bool {
	first := []rune(name + "_")[0]
	return !unicode.IsLetter(first) || strings.HasPrefix(strings.ToLower(name), "x-") || strings.ContainsAny(name, "/.:")
}

// most is the number of mistakes that a name of this length may have. Short names are
// near to many others: "mac" is two letters from "mtu".
func most(name string) int {
	switch {
	case len(name) < 3:
		return 0
	case len(name) < 5:
		return 1
	}
	return 2
}

// distance returns the number of letters to insert, delete, replace or exchange with
// their neighbour (the optimal string alignment distance).
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			replace := rows[i-1][j-1]
			if x[i-1] != y[j-1] {
				replace++
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(x)][len(y)]
}
