package conf

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// These variables have the directories of the reference plugins' sources, and of those of the
// last version with flannel.
const (
	sourcesVariable = "EMBEDCNI_TEST_PLUGIN_SOURCES"
	flannelVariable = "EMBEDCNI_TEST_FLANNEL_SOURCES"
)

// pluginSources finds the sources in the versions that other tests compare with, outside,
// where they can be downloaded.
func pluginSources() (env []string, err error) {
	for variable, requires := range map[string]string{
		sourcesVariable: "internal/oracle", flannelVariable: "internal/refplugins/mains/flannel",
	} {
		cmd := exec.Command("go", "mod", "download", "-json", "github.com/containernetworking/plugins")
		cmd.Dir = filepath.Join("../../../..", requires)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("find the sources of the reference plugins: %w: %s", err, out)
		}
		var module struct{ Dir string }
		if err := json.Unmarshal(out, &module); err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		env = append(env, variable+"="+module.Dir)
	}
	return env, nil
}

// later are fields of later releases, of plugins that are not built in.
var later = map[string]fields{"sbr": {"addSourceHints": truth, "gateways": array}} // v1.10.0

// TestTheFieldsAreThoseOfTheReferencePlugins compares the tables with the structs into which
// the plugins decode their configurations.
func TestTheFieldsAreThoseOfTheReferencePlugins(t *testing.T) {
	plugins := filepath.Join(os.Getenv(sourcesVariable), "plugins")
	want := map[string]fields{"flannel": readSource(t, filepath.Join(os.Getenv(flannelVariable), "plugins/meta/flannel")).plugin()}
	for _, dir := range append(expect.Value(filepath.Glob(plugins+"/main/*"))(t), expect.Value(filepath.Glob(plugins+"/meta/*"))(t)...) {
		if typ := filepath.Base(dir); typ != "windows" {
			want[typ] = readSource(t, dir).plugin()
			maps.Copy(want[typ], later[typ])
		}
	}
	got := map[string]fields{}
	for typ, own := range pluginFields {
		got[typ] = union(anyPlugin, own)
	}
	expect.Same(t, "plugins", got, want)

	allocator := readSource(t, plugins+"/ipam/host-local/backend/allocator")
	expect.Same(t, "IPAM plugins", ipamFields, map[string]fields{
		"host-local": allocator.of("IPAMConfig"),
		"static":     readSource(t, plugins+"/ipam/static").of("IPAMConfig"),
		"dhcp":       readSource(t, plugins+"/ipam/dhcp").of("IPAMConfig"),
	})
	expect.Same(t, "ranges", rangeFields, allocator.of("Range"))
	one := 1
	expect.Same(t, "routes", routeFields, encoded(t, types.Route{
		Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IPv4(10, 1, 0, 1), MTU: 1, AdvMSS: 1, Priority: 1, Table: &one, Scope: &one,
	}))
}

// encoded returns the fields of a value as JSON.
func encoded(t *testing.T, of any) fields {
	v, err := parse(expect.Value(json.Marshal(of))(t))
	expect.NoError(t, err)
	all := fields{}
	for _, m := range v.members {
		all[m.key] = m.kind
	}
	return all
}

// source has the types of a package.
type source struct {
	t     *testing.T
	types map[string]ast.Expr
}

func readSource(t *testing.T, dir string) source {
	t.Helper()
	s := source{t, map[string]ast.Expr{}}
	files := expect.Value(filepath.Glob(dir + "/*.go"))(t)
	expect.Must(t, len(files) > 0, "%s has no Go files", dir)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := expect.Value(parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				s.types[spec.Name.Name] = spec.Type
			}
			return true
		})
	}
	return s
}

// plugin returns the fields that every plugin may have, and those of the struct that extends
// them; a plugin without one has no more.
func (s source) plugin() fields {
	// The conventions of CNI have the first two, and a runtime sets them.
	all := fields{"args": object, "runtimeConfig": object}
	maps.Copy(all, reflected(types.PluginConf{}))
	for name, of := range s.types {
		of, ok := of.(*ast.StructType)
		if !ok || len(of.Fields.List) == 0 {
			continue
		}
		if embedded, ok := of.Fields.List[0].Type.(*ast.SelectorExpr); ok && of.Fields.List[0].Names == nil && embedded.Sel.Name == "NetConf" {
			maps.Copy(all, s.of(name))
		}
	}
	return all
}

// of returns the fields of a struct by their names in JSON. One without a tag is the plugin's
// own.
func (s source) of(name string) fields {
	s.t.Helper()
	of, ok := s.types[name].(*ast.StructType)
	expect.Must(s.t, ok, "%s is no struct", name)
	all := fields{}
	for _, f := range of.Fields.List {
		if f.Tag != nil {
			tag := reflect.StructTag(expect.Value(strconv.Unquote(f.Tag.Value))(s.t)).Get("json")
			if name, _, _ := strings.Cut(tag, ","); name != "-" {
				all[name] = s.kind(f.Type)
			}
		} else if f.Names == nil {
			maps.Copy(all, s.embedded(f.Type))
		}
	}
	return all
}

func (s source) embedded(of ast.Expr) fields {
	switch of := of.(type) {
	case *ast.StarExpr:
		return s.embedded(of.X)
	case *ast.Ident:
		return s.of(of.Name)
	case *ast.SelectorExpr:
		switch of.Sel.Name {
		case "NetConf":
			return reflected(types.NetConf{})
		case "IPAM":
			return reflected(types.IPAM{})
		}
	}
	s.t.Fatalf("a struct embeds a %T that this test does not know", of)
	return nil
}

// kind is the kind of JSON that a type is decoded from.
func (s source) kind(of ast.Expr) kind {
	switch of := of.(type) {
	case *ast.StarExpr:
		return s.kind(of.X)
	case *ast.ArrayType:
		return array
	case *ast.MapType, *ast.StructType:
		return object
	case *ast.SelectorExpr:
		switch of.Sel.Name {
		case "IP", "IPNet":
			return text
		case "DNS":
			return object
		}
	case *ast.Ident:
		switch {
		case s.types[of.Name] != nil:
			return s.kind(s.types[of.Name])
		case of.Name == "string":
			return text
		case of.Name == "bool":
			return truth
		case strings.HasPrefix(of.Name, "int"), strings.HasPrefix(of.Name, "uint"):
			return number
		}
	}
	s.t.Fatalf("a field has the type %T, %v, that this test does not know", of, of)
	return ""
}

// reflected returns the fields of a struct of package types, but for those that only a
// runtime sets.
func reflected(of any) fields {
	kinds := map[reflect.Kind]kind{reflect.String: text, reflect.Map: object, reflect.Struct: object}
	all := fields{}
	typ := reflect.TypeOf(of)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "-" && !strings.Contains(name, "/") {
			all[name] = kinds[f.Type.Kind()]
		}
	}
	return all
}
