package conf

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/version"
)

var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`) // CNI specification 1.1.0, section 1

// network finds what makes the library, or every plugin, refuse a configuration.
func (k *checked) network(v *value) {
	k.twice(v)
	known := listFields
	if k.isList() {
		k.kinds(v, known, "the list")
	}
	k.name(v)
	k.versions(v)
	if !k.isList() {
		if v.get("plugins") != nil {
			k.add(v.get("plugins").offset, `a list of plugins is in a file whose name does not end in ".conflist"`, "rename the file to "+strings.TrimSuffix(filepath.Base(k.path), filepath.Ext(k.path))+".conflist")
			return
		}
		k.plugin(v)
		return
	}
	plugins := v.get("plugins")
	switch {
	case plugins == nil || plugins.kind == array && len(plugins.items) == 0:
		if v.get("type") != nil {
			k.add(v.get("type").offset, "the file has the configuration of one plugin, and the name of a list", `put it into "plugins": […], or rename the file to .conf`)
		} else if !k.hasFolder(v) {
			k.add(v.offset, "there are no plugins", `add "plugins": [{"type": "bridge", …}]`)
		}
	case plugins.kind == array:
		for i := range plugins.items {
			k.plugin(&plugins.items[i])
		}
	}
}

// hasFolder reports whether plugins are in files of their own, in the directory of the
// network's name.
func (k *checked) hasFolder(v *value) bool {
	if v.true("loadOnlyInlinedPlugins") || v.str("name") == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(filepath.Dir(k.path), v.str("name")))
	return err == nil
}

// twice finds fields that are there twice: encoding/json takes the last of them and says
// nothing.
func (k *checked) twice(v *value) {
	for i := range v.members {
		for _, earlier := range v.members[:i] {
			if earlier.key == v.members[i].key {
				line, _ := position(k.data, earlier.offset)
				k.add(v.members[i].offset, fmt.Sprintf("%q is there twice; it is in line %d too", earlier.key, line), "delete one of them")
			}
		}
		k.twice(&v.members[i].value)
	}
	for i := range v.items {
		k.twice(&v.items[i])
	}
}

// kinds finds values of the wrong kind.
func (k *checked) kinds(v *value, known fields, of string) {
	for _, m := range v.members {
		want, ok := known[m.key]
		if !ok || m.kind == want || m.kind == null {
			continue
		}
		k.add(m.value.offset, fmt.Sprintf("%q of %s is %s, and must be %s", m.key, of, m.kind, want), example(m, want))
	}
}

// example is a value of the kind that is wanted.
func example(m member, want kind) string {
	s := strings.ToLower(fmt.Sprint(m.scalar))
	switch {
	case want == truth && (s == "true" || s == "false"):
		return fmt.Sprintf("write %q: %s, without quotes", m.key, s)
	case want == truth:
		return fmt.Sprintf("write %q: true, or false", m.key)
	case want == number && m.kind == text:
		return "write the number without quotes"
	case want == text && (m.kind == number || m.kind == truth):
		return fmt.Sprintf("write %q: \"%v\"", m.key, m.scalar)
	case want == array:
		return fmt.Sprintf("write %q: […]", m.key)
	case want == object:
		return fmt.Sprintf("write %q: {…}", m.key)
	}
	return ""
}

func (k *checked) name(v *value) {
	m := v.get("name")
	switch {
	case m == nil:
		k.add(v.offset, "the network has no name", `add "name": "…"`)
	case m.kind == text && !networkName.MatchString(v.str("name")):
		k.add(m.value.offset, fmt.Sprintf("the network's name %q is not letters, digits, '_', '.' and '-' with a letter or digit first", v.str("name")), "choose another name")
	case m.kind == text && len(v.str("name")) > 180:
		k.add(m.value.offset, "the network's name is longer than 180 bytes", "choose a shorter name")
	}
}

func (k *checked) versions(v *value) {
	supported := version.All.SupportedVersions()
	m := v.get("cniVersion")
	switch {
	case v.get("cniVersions") != nil:
	case m == nil:
		k.add(v.offset, "there is no cniVersion, so that plugins are asked as in version 0.1.0", `add "cniVersion": "1.0.0"`)
	case m.kind == text && !slices.Contains(supported, v.str("cniVersion")):
		k.add(m.value.offset, fmt.Sprintf("cniVersion %q is not known", v.str("cniVersion")), "write one of "+strings.Join(supported[1:], ", "))
	}
}

// plugin finds what is wrong with one plugin.
func (k *checked) plugin(p *value) {
	if p.kind != object {
		k.add(p.offset, fmt.Sprintf("the plugin is %s, not an object", p.kind), `write {"type": …}`)
		return
	}
	typ := k.typeOf(p, "plugin")
	if typ == "" {
		return
	}
	known := union(anyPlugin, pluginFields[typ])
	k.kinds(p, known, "plugin "+typ)
	if d := p.get("delegate"); d != nil && typ == "flannel" {
		of := cmp.Or(d.value.str("type"), "bridge")
		k.kinds(&d.value, union(anyPlugin, pluginFields[of]), "delegate "+of)
	}
	ipam := p.get("ipam")
	if ipam == nil || ipam.kind != object || len(ipam.members) == 0 {
		return
	}
	of := "host-local" // that flannel has if none is named
	if typ != "flannel" || ipam.value.get("type") != nil {
		of = k.typeOf(&ipam.value, "ipam")
	}
	if of != "" {
		k.kinds(&ipam.value, ipamFields[of], "ipam "+of)
		if of == "host-local" && typ != "flannel" { // which adds the ranges
			k.ranges(&ipam.value)
		}
	}
}

// typeOf returns the type of a plugin that exists, or reports that there is none.
func (k *checked) typeOf(p *value, what string) string {
	m, typ := p.get("type"), p.str("type")
	switch {
	case m == nil:
		k.add(p.offset, "the "+what+` has no "type"`, fmt.Sprintf(`add "type": "%s"`, map[string]string{"plugin": "bridge", "ipam": "host-local"}[what]))
		return ""
	case m.kind != text:
		return "" // reported with the kinds
	case typ == "" || strings.ContainsAny(typ, "/\\\x00") || typ == "." || typ == "..":
		k.add(m.value.offset, fmt.Sprintf("type %q is not the name of a file", typ), "write the plugin's name without a directory")
		return ""
	}
	if !k.exists(typ) {
		mend := "install it in " + strings.Join(k.PluginDirs, " or ")
		if meant := nearest(typ, typesKnown()); meant != "" {
			mend = fmt.Sprintf("write %q, or %s", meant, mend)
		}
		k.add(m.value.offset, fmt.Sprintf("there is no plugin %q: it is neither built in nor installed", typ), mend)
	}
	return typ
}

// builtIn are the types that run in process; see cni.WithBuiltinPlugins.
var builtIn = []string{"bridge", "ptp", "macvlan", "host-device", "loopback", "host-local", "static", "portmap", "firewall", "bandwidth", "tuning", "flannel"}

// exists reports whether there is a plugin of the type.
func (k *checked) exists(typ string) bool {
	return slices.Contains(builtIn, typ) || slices.ContainsFunc(k.PluginDirs, func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, typ))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}

func typesKnown() (all []string) {
	for typ := range pluginFields {
		all = append(all, typ)
	}
	for typ := range ipamFields {
		all = append(all, typ)
	}
	slices.Sort(all)
	return all
}

func union(a, b fields) fields {
	all := fields{}
	for _, f := range []fields{a, b} {
		for key, kind := range f {
			all[key] = kind
		}
	}
	return all
}
