package oracle

import (
	"fmt"
	"go/types"
	"reflect"
	"slices"
	"strings"
)

// apiComparison finds the incompatibilities for a program that moves from one
// package to the other. Types correspond by name. go-cni's unexported libcni
// corresponds to config in options, and to Runtime in methods.
type apiComparison struct {
	before, now *types.Package
	problems    []string
}

// compareAPI returns the incompatible changes, sorted.
func compareAPI(before, now *types.Package) []string {
	c := &apiComparison{before: before, now: now}
	for _, name := range exportedNames(before) {
		c.object(name)
	}
	if libcni, ok := before.Scope().Lookup("libcni").(*types.TypeName); ok {
		c.methods("Runtime", libcni.Type(), now.Scope().Lookup("Runtime").Type())
	}
	slices.Sort(c.problems)
	return c.problems
}

func exportedNames(p *types.Package) []string {
	return slices.DeleteFunc(p.Scope().Names(), func(name string) bool {
		return !p.Scope().Lookup(name).Exported()
	})
}

func (c *apiComparison) problem(name, format string, args ...any) {
	c.problems = append(c.problems, name+": "+fmt.Sprintf(format, args...))
}

// became reports a changed type, in the packages' own terms.
func (c *apiComparison) became(name, prefix string, before, now types.Type) {
	short := func(*types.Package) string { return "" }
	c.problem(name, "%s%s became %s", prefix, types.TypeString(before, short), types.TypeString(now, short))
}

func (c *apiComparison) object(name string) {
	before, now := c.before.Scope().Lookup(name), c.now.Scope().Lookup(name)
	if now == nil {
		c.problem(name, "missing")
		return
	}
	if was, is := kind(before), kind(now); was != is {
		c.problem(name, "%s became %s", was, is)
		return
	}
	switch before := before.(type) {
	case *types.Const:
		c.constant(before, now.(*types.Const))
	case *types.TypeName:
		c.typeName(before, now.(*types.TypeName))
	case *types.Func:
		c.function(name, before.Type(), now.Type())
	default:
		if !c.same(before.Type(), now.Type()) {
			c.became(name, "", before.Type(), now.Type())
		}
	}
}

func kind(o types.Object) string {
	switch o.(type) {
	case *types.Const:
		return "const"
	case *types.TypeName:
		return "type"
	case *types.Func:
		return "func"
	default:
		return "var"
	}
}

func (c *apiComparison) constant(before, now *types.Const) {
	if !c.same(before.Type(), now.Type()) {
		c.became(before.Name(), "", before.Type(), now.Type())
		return
	}
	if before.Val().Kind() != now.Val().Kind() || before.Val().ExactString() != now.Val().ExactString() {
		c.problem(before.Name(), "constant %s became %s", before.Val(), now.Val())
	}
}

// function compares signatures. A result that was an interface of the package
// may become a type with its methods, because callers assign it to the
// interface.
func (c *apiComparison) function(name string, before, now types.Type) {
	b, n := before.(*types.Signature), now.(*types.Signature)
	if c.same(b, n) {
		return
	}
	if b.Variadic() != n.Variadic() || !c.tuple(b.Params(), n.Params()) || b.Results().Len() != n.Results().Len() {
		c.became(name, "", before, now)
		return
	}
	for i := range b.Results().Len() {
		was, is := b.Results().At(i).Type(), n.Results().At(i).Type()
		if !c.same(was, is) && !c.implements(was, is) {
			c.became(name, "result ", was, is)
		}
	}
}

func (c *apiComparison) implements(was, is types.Type) bool {
	named, ok := was.(*types.Named)
	if !ok || named.Obj().Pkg() != c.before || !types.IsInterface(was) {
		return false
	}
	counterpart := c.now.Scope().Lookup(named.Obj().Name())
	return counterpart != nil && types.AssignableTo(is, counterpart.Type())
}

func (c *apiComparison) typeName(before, now *types.TypeName) {
	name := before.Name()
	if before.IsAlias() || now.IsAlias() {
		if before.IsAlias() != now.IsAlias() || !c.same(before.Type(), now.Type()) {
			c.became(name, "", types.Unalias(before.Type()), types.Unalias(now.Type()))
		}
		return
	}
	b, isStruct := before.Type().Underlying().(*types.Struct)
	n, isStructNow := now.Type().Underlying().(*types.Struct)
	switch {
	case isStruct && isStructNow:
		c.fields(name, b, n)
	case types.IsInterface(before.Type()) && types.IsInterface(now.Type()):
		c.interfaceMethods(name, before.Type(), now.Type())
	case !c.same(before.Type().Underlying(), now.Type().Underlying()):
		c.became(name, "", before.Type().Underlying(), now.Type().Underlying())
	}
	c.methods(name, before.Type(), now.Type())
}

// interfaceMethods requires exactly the same methods: with one more, importers'
// fakes would no longer satisfy the interface.
func (c *apiComparison) interfaceMethods(name string, before, now types.Type) {
	names := func(t types.Type) (all []string) {
		for m := range t.Underlying().(*types.Interface).Methods() {
			all = append(all, m.Name())
		}
		return all
	}
	if b, n := names(before), names(now); !slices.Equal(b, n) {
		c.problem(name, "interface has methods %v, not %v", n, b)
	}
}

// methods requires the exported methods that before had.
func (c *apiComparison) methods(name string, before, now types.Type) {
	named, ok := before.(*types.Named)
	if !ok {
		return
	}
	set := types.NewMethodSet(types.NewPointer(now))
	if types.IsInterface(now) {
		set = types.NewMethodSet(now)
	}
	var declared []*types.Func
	for m := range named.Methods() {
		declared = append(declared, m)
	}
	if i, ok := named.Underlying().(*types.Interface); ok {
		declared = slices.Collect(i.Methods())
	}
	for _, m := range declared {
		if !m.Exported() {
			continue
		}
		found := set.Lookup(c.now, m.Name())
		if found == nil {
			c.problem(name+"."+m.Name(), "missing")
			continue
		}
		c.function(name+"."+m.Name(), m.Type(), found.Obj().Type())
	}
}

// fields requires the exported fields of before, in their order and with their
// JSON keys. New fields must not appear in JSON unless they are used.
func (c *apiComparison) fields(name string, before, now *types.Struct) {
	position := map[string]int{}
	for i := range now.NumFields() {
		position[now.Field(i).Name()] = i
	}
	last, lastName := -1, ""
	known := map[string]bool{}
	for i := range before.NumFields() {
		f := before.Field(i)
		if !f.Exported() {
			continue
		}
		known[f.Name()] = true
		at, ok := position[f.Name()]
		if !ok {
			c.problem(name, "field %s is missing", f.Name())
			continue
		}
		if at < last {
			c.problem(name, "field %s stands before %s no longer", lastName, f.Name())
		}
		last, lastName = at, f.Name()
		if !c.same(f.Type(), now.Field(at).Type()) {
			c.became(name, "field "+f.Name()+": ", f.Type(), now.Field(at).Type())
		}
		if was, is := jsonTag(before, i), jsonTag(now, at); was != is {
			c.problem(name, "field %s: JSON key %q became %q", f.Name(), was, is)
		}
	}
	for i := range now.NumFields() {
		f := now.Field(i)
		if f.Exported() && !known[f.Name()] && jsonTag(now, i) != "-" && !strings.HasSuffix(jsonTag(now, i), ",omitempty") {
			c.problem(name, "new field %s is not left out of JSON when it is empty", f.Name())
		}
	}
}

// jsonTag returns a field's JSON key and options.
func jsonTag(s *types.Struct, i int) string {
	key, options, _ := strings.Cut(reflect.StructTag(s.Tag(i)).Get("json"), ",")
	if key == "" {
		key = s.Field(i).Name()
	}
	if options != "" {
		key += "," + options
	}
	return key
}

func (c *apiComparison) tuple(before, now *types.Tuple) bool {
	if before.Len() != now.Len() {
		return false
	}
	for i := range before.Len() {
		if !c.same(before.At(i).Type(), now.At(i).Type()) {
			return false
		}
	}
	return true
}

// same reports whether types are identical after those of the packages
// themselves are mapped by name.
func (c *apiComparison) same(before, now types.Type) bool {
	before, now = types.Unalias(before), types.Unalias(now)
	switch b := before.(type) {
	case *types.Named:
		if b.Obj().Pkg() != c.before {
			return types.Identical(before, now)
		}
		name := b.Obj().Name()
		if name == "libcni" {
			name = "config"
		}
		n, ok := now.(*types.Named)
		return ok && n.Obj().Pkg() == c.now && n.Obj().Name() == name
	case *types.Pointer:
		n, ok := now.(*types.Pointer)
		return ok && c.same(b.Elem(), n.Elem())
	case *types.Slice:
		n, ok := now.(*types.Slice)
		return ok && c.same(b.Elem(), n.Elem())
	case *types.Map:
		n, ok := now.(*types.Map)
		return ok && c.same(b.Key(), n.Key()) && c.same(b.Elem(), n.Elem())
	case *types.Signature:
		n, ok := now.(*types.Signature)
		return ok && b.Variadic() == n.Variadic() && c.tuple(b.Params(), n.Params()) && c.tuple(b.Results(), n.Results())
	default:
		return types.Identical(before, now)
	}
}
