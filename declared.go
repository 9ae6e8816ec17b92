package cni

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// undeclared returns the capabilities without effect: no network for which they were meant
// declares them. One that is required is an error.
func (s *snapshot) undeclared(ns *Namespace, selected []selection) (ignored []string, err error) {
	// Those of the call are meant for the networks that have no other value.
	ignored, err = s.undeclaredIn(ns.id, &ns.scope, func(name string) (meant []*Network) {
		for _, sel := range selected {
			if _, own := sel.capabilityArgs[name]; !own {
				meant = append(meant, sel.of)
			}
		}
		return meant
	})
	errs := []error{err}
	for i := 0; i < len(selected); {
		// A selection that means several networks of one name stands once for each.
		var meant []*Network
		first := selected[i]
		for ; i < len(selected) && selected[i].index == first.index; i++ {
			meant = append(meant, selected[i].of)
		}
		some, err := s.undeclaredIn(ns.id, &first.scope, func(string) []*Network { return meant })
		ignored, errs = append(ignored, some...), append(errs, err)
	}
	slices.Sort(ignored)
	return slices.Compact(ignored), join(errs...)
}

// undeclaredIn is undeclared for the options of one scope.
func (s *snapshot) undeclaredIn(id record.ID, in *scope, meant func(name string) []*Network) (ignored []string, err error) {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(in.capabilityArgs)) {
		networks := meant(name)
		declared := slices.ContainsFunc(networks, func(n *Network) bool { return n.declares(name) })
		if declared || len(networks) == 0 || isEmpty(in.capabilityArgs[name]) {
			continue
		}
		if s.opts.strictCaps || in.required[name] {
			errs = append(errs, fmt.Errorf("capability %q is declared by no plugin of %s: %s: %w", name, namesOf(networks), advice(networks, name), ErrInvalidArgument))
			continue
		}
		s.loud(name).Warn("capability is declared by no plugin and has no effect", "capability", name, "container", id)
		ignored = append(ignored, name)
	}
	return ignored, join(errs...)
}

// loud returns the logger for a warning about a capability that a caller has no other sign
// of: slog's default if none was set. That one gets it once until the next Load, because
// some programs give the same capabilities to each container.
func (s *snapshot) loud(capability string) *slog.Logger {
	if s.opts.loggerSet {
		return s.opts.logger
	}
	if _, again := s.warned.LoadOrStore(capability, true); again {
		return s.opts.logger
	}
	return slog.Default()
}

// namesOf names networks in an error.
func namesOf(networks []*Network) string {
	var names []string
	for _, n := range networks {
		names = append(names, fmt.Sprintf("network %q", n.config.Name))
	}
	return strings.Join(names, ", ")
}

// advice says what to add to a configuration, so that a plugin gets the capability.
func advice(networks []*Network, capability string) string {
	field := fmt.Sprintf(`"capabilities": {%q: true}`, capability)
	for _, n := range networks {
		for _, p := range n.config.Plugins {
			if known.ReadsCapability(p.Network.Type, p.Network.IPAM.Type, capability) {
				return fmt.Sprintf("add %s to plugin %q of network %q", field, p.Network.Type, n.config.Name)
			}
		}
	}
	if readers := known.ReadersOf(capability); len(readers) > 0 {
		return fmt.Sprintf("add a plugin that reads it (%s) with %s", strings.Join(readers, ", "), field)
	}
	return "add " + field + " to the plugin that reads it"
}

// isEmpty reports whether a capability asks for nothing, for example an empty
// list of ports.
func isEmpty(value any) bool {
	if value == nil {
		return true
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return false
	}
}
