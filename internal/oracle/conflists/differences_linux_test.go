package conflists

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/scripted"
)

// step is a call of both libraries.
type step struct {
	verb     string
	version  string         // of the configuration
	rollback bool           // after a failed ADD
	results  map[string]any // of the ADD of each container
}

// isResult reports whether a value in a container's request is the result of its ADD.
func (s step) isResult(r *request) func(any) bool {
	return func(value any) bool {
		known := asKnown(value)
		for id, result := range s.results {
			if slices.Contains(r.Protocol, "CNI_CONTAINERID="+id) {
				return known != nil && reflect.DeepEqual(known, result)
			}
		}
		return false
	}
}

// request is a call of a plugin, in parts that can be compared.
type request struct {
	Executable string
	Verb       string
	Protocol   []string // the CNI_ variables
	Others     []string // those of the environment beside them
	NetNS      string   // in which the plugin runs
	Stdin      map[string]any
	Bytes      string // of stdin
}

// difference is a difference between the two libraries that is meant.
type difference struct {
	name, why string
	// even makes two requests alike as far as this difference goes, and reports whether they
	// had it.
	even func(s step, ours, theirs *request) bool
	// more reports whether only this library makes these calls.
	more func(s step, ours, theirs []scripted.Call) bool
}

// differences are all that there are. The first ones are in nearly every call.
var differences = []difference{
	{name: "environment", why: "libcni hands its caller's whole environment on, which has a daemon's tokens; this library PATH, and what plugins need of it",
		even: func(_ step, ours, theirs *request) bool {
			isTheirs := func(v string) bool { return slices.Contains(theirs.Others, v) }
			if len(ours.Others) >= len(theirs.Others) || len(slices.DeleteFunc(slices.Clone(ours.Others), isTheirs)) > 0 {
				return false
			}
			theirs.Others = ours.Others
			return true
		}},
	{name: "spelling", why: "libcni decodes and encodes the configuration: it sorts the keys; this library hands the plugin's values on to the byte",
		even: func(_ step, ours, theirs *request) bool {
			differ := ours.Bytes != theirs.Bytes
			theirs.Bytes = ours.Bytes // Stdin has the values
			return differ
		}},
	{name: "capabilities", why: "those that a plugin declares are meant for the runtime (specification 1.1.0, section 3); libcni sends them too",
		even: func(_ step, ours, theirs *request) bool { return drop("capabilities", ours, theirs, anything) }},
	{name: "numbers", why: "libcni reads numbers as float64, so that 9007199254740993 becomes 9007199254740992",
		even: func(_ step, ours, theirs *request) bool {
			rounded, changed := asLibcni(ours.Stdin)
			if changed {
				ours.Stdin = rounded.(map[string]any)
			}
			return changed
		}},
	{name: "runtimeConfig", why: "only a runtime may write this key (section 1, reserved keys); libcni hands on what the file has",
		even: func(_ step, ours, theirs *request) bool {
			return drop("runtimeConfig", ours, theirs, func(v any) bool { return reflect.DeepEqual(v, map[string]any{}) })
		}},
	{name: "DEL before 0.4.0", why: "a DEL of these versions gets the result too, as one of later versions: more can be undone",
		even: func(s step, ours, theirs *request) bool {
			return s.verb == "DEL" && s.version < "0.4.0" && drop("prevResult", theirs, ours, s.isResult(ours))
		}},
	{name: "DEL of a failed ADD", why: "gets the result of the last plugin that succeeded; libcni's caller has none to give",
		even: func(s step, ours, theirs *request) bool {
			return s.rollback && s.verb == "DEL" && drop("prevResult", theirs, ours, s.isResult(ours))
		}},
	{name: "result as printed", why: "CHECK and DEL get a result of the configuration's version as the plugin has printed it, with all its keys; " +
		"libcni hands the fields on that it knows, an empty dns too",
		even: func(s step, ours, theirs *request) bool {
			printed, ok := ours.Stdin["prevResult"]
			known := asKnown(printed)
			if !ok || s.verb == "ADD" || reflect.DeepEqual(printed, theirs.Stdin["prevResult"]) || !reflect.DeepEqual(known, theirs.Stdin["prevResult"]) {
				return false
			}
			ours.Stdin["prevResult"] = known
			return true
		}},
	{name: gcRemoves, why: "removes the containers that are not to be kept; their plugins get no GC, as with libcni, which removes nothing",
		more: func(s step, ours, theirs []scripted.Call) bool {
			isDel := func(c scripted.Call) bool { return c.Verb == "DEL" }
			return s.verb == "GC" && len(theirs) == 0 && len(ours) > 0 && len(slices.DeleteFunc(slices.Clone(ours), isDel)) == 0
		}},
}

// gcRemoves is the name of a difference after which the caches differ too.
const gcRemoves = "GC of a network with disableGC"

func anything(any) bool { return true }

// asKnown returns a result with those fields that the project's library knows.
func asKnown(result any) (known any) {
	data, err := json.Marshal(result)
	if err != nil {
		return nil
	}
	r, err := create.CreateFromBytes(data)
	if err == nil {
		data, err = json.Marshal(r)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err != nil || dec.Decode(&known) != nil {
		return nil
	}
	return known
}

// drop deletes a key from one request that the other has not, if its value is such.
func drop(key string, without, with *request, such func(any) bool) bool {
	if _, both := without.Stdin[key]; both {
		return false
	}
	value, ok := with.Stdin[key]
	if !ok || !such(value) {
		return false
	}
	delete(with.Stdin, key)
	return true
}

// asLibcni returns a value with its numbers as libcni writes them.
func asLibcni(value any) (_ any, changed bool) {
	switch v := value.(type) {
	case map[string]any:
		all := map[string]any{}
		for key, inner := range v {
			of, did := asLibcni(inner)
			all[key], changed = of, changed || did
		}
		return all, changed
	case []any:
		all := make([]any, len(v))
		for i, inner := range v {
			of, did := asLibcni(inner)
			all[i], changed = of, changed || did
		}
		return all, changed
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return value, false
		}
		data, err := json.Marshal(f)
		return json.Number(data), err == nil && string(data) != string(v)
	}
	return value, false
}
