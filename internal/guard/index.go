package guard

import "slices"

// Index finds the containers that a sign points at. It has those that are on record as
// attached, and neither those of an unfinished Setup nor those being removed.
type Index struct {
	signs map[string][]Sign            // by container
	found map[Sign]map[string]struct{} // containers
}

// Set replaces the signs of a container.
func (x *Index) Set(id string, signs []Sign) {
	x.Delete(id)
	if x.signs == nil {
		x.signs, x.found = make(map[string][]Sign), make(map[Sign]map[string]struct{})
	}
	x.signs[id] = slices.Clone(signs) // perhaps none
	for _, s := range signs {
		if x.found[s] == nil {
			x.found[s] = make(map[string]struct{})
		}
		x.found[s][id] = struct{}{}
	}
}

// Delete removes a container.
func (x *Index) Delete(id string) {
	for _, s := range x.signs[id] {
		delete(x.found[s], id)
		if len(x.found[s]) == 0 {
			delete(x.found, s)
		}
	}
	delete(x.signs, id)
}

// Len returns the number of containers.
func (x *Index) Len() int { return len(x.signs) }

// Knows reports whether a container has the sign.
func (x *Index) Knows(s Sign) bool { return len(x.found[s]) > 0 }

// Find adds the containers of a sign to a set.
func (x *Index) Find(s Sign, to map[string]struct{}) {
	for id := range x.found[s] {
		to[id] = struct{}{}
	}
}
