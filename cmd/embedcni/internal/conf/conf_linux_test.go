package conf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// STATUS looks at the host.
func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }

// check writes files into a directory and checks that.
func check(t *testing.T, files map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
	}
	plugins := filepath.Join(dir, "plugins")
	expect.NoError(t, os.Mkdir(plugins, 0o755), os.WriteFile(filepath.Join(plugins, "vendor"), nil, 0o755))
	c := &Checker{PluginDirs: []string{plugins}}
	n, found, err := c.Path(t.Context(), dir)
	expect.NoError(t, err)
	expect.Same(t, "number of files", n, len(files))
	lines := []string{}
	for _, f := range found {
		line := f.String() + " | " + f.Mend
		lines = append(lines, strings.ReplaceAll(line, dir+"/", ""))
	}
	return lines
}

const ipam = `"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}`

// list makes a list of plugins, each in a line from the second on.
func list(plugins ...string) string {
	return "{\"cniVersion\": \"1.0.0\", \"name\": \"net\", \"plugins\": [\n" + strings.Join(plugins, ",\n") + "\n]}"
}

func TestFindings(t *testing.T) {
	bridge := `{"type": "bridge", ` + ipam + `}`
	of := func(ipam string) string {
		return list(`{"type": "bridge", "ipam": {"type": "host-local", ` + ipam + `}}`)
	}
	for _, c := range []struct {
		content string
		want    []string
	}{
		{list(bridge, `{"type": "firewall"}`, `{"type": "portmap", "capabilities": {"portMappings": true}}`), nil},
		{list(`{"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}, "ipam": {"dataDir": "/x"}}`,
			`{"type": "portmap", "capabilities": {"portMappings": true}}`), nil},
		{list(`{"type": "flannel", "subnetFile": 5, "delegate": {"hairpinMode": "true"}}`, `{"type": "flannel", "delegate": "ptp"}`,
			`{"type": "flannel", "delegate": {"type": "ptp", "mtu": "1"}}`), []string{
			`a.conflist:2:35: "subnetFile" of plugin flannel is a number, and must be a string | write "subnetFile": "5"`,
			`a.conflist:2:66: "hairpinMode" of delegate bridge is a string, and must be true or false | write "hairpinMode": true, without quotes`,
			`a.conflist:3:33: "delegate" of plugin flannel is a string, and must be an object | write "delegate": {…}`,
			`a.conflist:4:56: "mtu" of delegate ptp is a string, and must be a number | write the number without quotes`,
		}},
		{list(`{"type": "vendor", "anything": 1}`, `{"type": "tuning"}`), nil},
		{`{"cniVersion": "1.0.0", "name": "net", "plugins": [` + bridge, []string{`a.conflist:1:143: the file is no JSON: the file ends in the middle of the configuration | look for a comma, a quote or a brace that is missing or too many before this place`}},
		{"{\"cniVersion\": \"1.0.0\",\n\"name\" \"net\"}", []string{`a.conflist:2:8: the file is no JSON: invalid character '"' after object key | look for a comma, a quote or a brace that is missing or too many before this place`}},
		{"{}x", []string{`a.conflist:1:3: the file is no JSON: there is something behind the configuration | look for a comma, a quote or a brace that is missing or too many before this place`}},
		{"{\"n\": \"\xff\"}", []string{`a.conflist:1:8: the file is no JSON: the file is not UTF-8 | look for a comma, a quote or a brace that is missing or too many before this place`}},
		{"[]", []string{`a.conflist:1:1: the configuration is a list, not an object | write {"cniVersion": "1.0.0", "name": …, "plugins": […]}`}},
		{"{}", []string{
			`a.conflist:1:1: the network has no name | add "name": "…"`,
			`a.conflist:1:1: there is no cniVersion, so that plugins are asked as in version 0.1.0 | add "cniVersion": "1.0.0"`,
			`a.conflist:1:1: there are no plugins | add "plugins": [{"type": "bridge", …}]`,
		}},
		{`{"cniVersion": "1.0.0", "name": "a/b", "plugins": {}}`, []string{
			`a.conflist:1:33: the network's name "a/b" is not letters, digits, '_', '.' and '-' with a letter or digit first | choose another name`,
			`a.conflist:1:51: "plugins" of the list is an object, and must be a list | write "plugins": […]`,
		}},
		{`{"cniVersion": "1.0.0", "name": "net", "type": "bridge"}`, []string{`a.conflist:1:40: the file has the configuration of one plugin, and the name of a list | put it into "plugins": […], or rename the file to .conf`}},
		{list(`{"type": "bridge", "type": "bridge", ` + ipam + `}`), []string{`a.conflist:2:20: "type" is there twice; it is in line 2 too | delete one of them`}},
		{list(`{"type": "brigde"}`), []string{`a.conflist:2:10: there is no plugin "brigde": it is neither built in nor installed | write "bridge", or install it in plugins`}},
		{list(`{"type": "../bridge"}`), []string{`a.conflist:2:10: type "../bridge" is not the name of a file | write the plugin's name without a directory`}},
		{list(`{"bridge": "a"}`, `1`), []string{
			`a.conflist:2:1: the plugin has no "type" | add "type": "bridge"`,
			`a.conflist:3:1: the plugin is a number, not an object | write {"type": …}`,
		}},
		{list(`{"type": "bridge", "isGatway": true, "isgateway": true, "mtu": "1400", "hairpinMode": "False", ` + ipam + `}`), []string{
			`a.conflist:2:20: plugin bridge has no field "isGatway", and ignores it | write "isGateway"`,
			`a.conflist:2:64: "mtu" of plugin bridge is a string, and must be a number | write the number without quotes`,
			`a.conflist:2:87: "hairpinMode" of plugin bridge is a string, and must be true or false | write "hairpinMode": false, without quotes`,
		}},
		{list(`{"type": "portmap"}`, bridge), []string{
			`a.conflist:2:1: plugin portmap does not declare the capability portMappings, and so never gets any | add "capabilities": {"portMappings": true} to it`,
			`a.conflist:2:10: plugin portmap changes an interface, and no plugin before it makes one | move it behind the plugin that does, such as bridge`,
		}},
		{of(`"x": 1`), []string{
			`a.conflist:2:28: ipam host-local has no subnet | add "ranges": [[{"subnet": "10.1.0.0/24"}]]`,
			`a.conflist:2:51: ipam host-local has no field "x", and ignores it | delete it, unless it is for another program`,
		}},
		{of(`"ranges": [{"subnet": "10.1.0.0/24"}]`), []string{`a.conflist:2:62: "ranges" is a list of lists of ranges | write "ranges": [[{"subnet": …}], [{"subnet": …}]]`}},
		{of(`"subnet": "10.1.0.1/24"`), []string{`a.conflist:2:61: subnet 10.1.0.1/24 has bits behind its prefix length, which host-local refuses | write "10.1.0.0/24"`}},
		{of(`"subnet": "10.1.0.0"`), []string{`a.conflist:2:61: subnet "10.1.0.0" is no address with a prefix length | write it as in "10.1.0.0/24"`}},
		{of(`"subnet": "10.1.0.0/31"`), []string{`a.conflist:2:61: subnet 10.1.0.0/31 has no room for a gateway and a container | choose a larger one`}},
		{of(`"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8", "gateway": "10.2.0.1"}]]`), []string{
			`a.conflist:2:127: rangeEnd 10.1.0.8 comes before rangeStart 10.1.0.9 | exchange them`,
			`a.conflist:2:150: gateway 10.2.0.1 is not in subnet 10.1.0.0/24 | choose an address of the subnet`,
		}},
		{list(`{"type": "bridge", "isDefaultGateway": true, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}`), []string{
			`a.conflist:2:113: isDefaultGateway adds the default route already, and the reference plugin refuses a second | delete this route, or isDefaultGateway`}},
		{list(`{"type": "bridge", "bridge": "a-name-that-is-long", ` + ipam + `}`), []string{
			`a.conflist:2:20: plugin bridge would refuse every container: "bridge": "a-name-that-is-long" is no name of an interface: 1 to 15 characters | `}},
		{list(bridge, `{"type": "firewall", "ingressPolicy": "closed"}`), []string{
			`a.conflist:3:22: plugin firewall would refuse every container: ingressPolicy is "closed": it must be "open", "same-bridge" or "isolated" | `}},
	} {
		want := append([]string{}, c.want...)
		expect.Same(t, c.content, check(t, map[string]string{"a.conflist": c.content}), want)
	}
}

// Files of one plugin, and mistakes between files.
func TestFindingsOfDirectories(t *testing.T) {
	single := `{"cniVersion": "1.0.0", "name": "one", "type": "bridge", "bridge": "one0", "isGateway": true, ` + ipam + `}`
	expect.Same(t, "one plugin", check(t, map[string]string{"a.conf": single}), []string{})
	expect.Same(t, "a list in .conf", check(t, map[string]string{"a.conf": list("{}")}), []string{
		`a.conf:1:40: a list of plugins is in a file whose name does not end in ".conflist" | rename the file to a.conflist`})
	expect.Same(t, "one network twice", check(t, map[string]string{"a.conf": single, "b.conf": single}), []string{
		`b.conf:1:33: network "one" is in a.conf too | rename one of them, or delete a file`})
	other := strings.ReplaceAll(strings.ReplaceAll(single, "one", "two"), "10.1.0.0/24", "10.1.0.128/25")
	expect.Same(t, "overlapping subnets", check(t, map[string]string{"a.conf": single, "b.conf": other}), []string{
		`b.conf:1:149: subnet 10.1.0.128/25 overlaps 10.1.0.0/24 of network "one" in a.conf | choose another subnet for one of them`})
	expect.Same(t, "one bridge", check(t, map[string]string{"a.conf": single, "b.conf": strings.ReplaceAll(other, "two0", "one0")}), []string{})
}

// A file that others may write is refused by the library alone.
func TestInsecureFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conflist")
	expect.NoError(t, os.WriteFile(path, []byte(list(`{"type": "bridge", `+ipam+`}`)), 0o644), os.Chmod(path, 0o666))
	_, found, err := new(Checker).Path(t.Context(), path)
	expect.NoError(t, err)
	expect.Must(t, len(found) == 1 && found[0].Line == 0, "findings: %v", found)
	expect.Contains(t, "finding", found[0].Message, "is writable by everybody: run chmod o-w on it")
}

// Nobody waits for what is no file.
func TestFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.conflist")
	expect.NoError(t, unix.Mkfifo(path, 0o644))
	_, found, err := new(Checker).Path(t.Context(), path)
	expect.NoError(t, err)
	expect.Same(t, "findings", found, []Finding{{File: path, Message: "it is no regular file", Mend: "delete it, or write the configuration into a file"}})
}

// The types that are said to be built in are all that are.
func TestBuiltIn(t *testing.T) {
	_, err := cni.New(cni.WithBuiltinPlugins(builtIn...))
	expect.NoError(t, err)
	for _, typ := range typesKnown() {
		_, err := cni.New(cni.WithBuiltinPlugins(typ))
		expect.Same(t, typ+" is built in", err == nil, (&checked{Checker: &Checker{}}).exists(typ))
	}
}

// Whatever a file has, a check ends without an error, its findings are in the file, and the
// library loads each list in which nothing is found.
func FuzzCheck(f *testing.F) {
	f.Add([]byte(list(`{"type": "bridge", ` + ipam + `}`)))
	f.Add([]byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "tuning", "sysctl": {"a": null}}]}`))
	f.Add([]byte("{\"a\":\n[1, {\"b\": \"\\u00e9\"}, true, null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "a.conflist")
		expect.NoError(t, os.WriteFile(path, data, 0o644))
		_, found, err := new(Checker).Path(t.Context(), path)
		expect.NoError(t, err)
		for _, finding := range found {
			expect.That(t, finding.Line <= strings.Count(string(data), "\n")+1 && finding.Column <= len(data)+1, "%v is outside of the file", finding)
		}
		if _, err := cni.New(cni.WithConfListFile(path)); len(found) == 0 {
			expect.Succeeds(t, "the library loads what was found good", err)
		} else if err == nil {
			return
		}
		expect.That(t, json.Valid(data) || len(found) > 0, "nothing is found in a file that is no JSON")
	})
}
