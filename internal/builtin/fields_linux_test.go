package builtin

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/misspelt"
)

func everyType(string) bool { return true }

func misspeltIn(config string, is func(string) bool) string {
	var lines []string
	for _, f := range Misspelt(json.RawMessage(config), is) {
		lines = append(lines, f.Name+": "+f.Nearest)
	}
	return strings.Join(lines, "\n")
}

// TestEveryPluginHasFields: the fields of a plugin that does not say how it decodes its
// configuration would not be checked.
func TestEveryPluginHasFields(t *testing.T) {
	for typ := range plugins {
		if fields(typ) == nil {
			t.Errorf("%s has none", typ)
		}
	}
}

// TestMisspelt has one mistake, or two, in the fields of each plugin.
func TestMisspelt(t *testing.T) {
	for config, want := range map[string]string{
		`{"type": "bridge", "isGatway": true, "ipMask": true}`:                                         "ipMask: ipMasq\nisGatway: isGateway",
		`{"type": "bridge", "vlanTrunk": [{"minId": 1, "maxxID": 2}]}`:                                 "vlanTrunk.maxxID: vlanTrunk.maxID",
		`{"type": "bridge", "macspoofcheck": true, "mtuu": 1, "capabilites": {}, "dsn": {}}`:           "capabilites: capabilities\ndsn: dns\nmacspoofcheck: macspoofchk\nmtuu: mtu",
		`{"type": "bridge", "dns": {"nameserver": ["10.0.0.1"]}, "ipma": {}}`:                          "dns.nameserver: dns.nameservers\nipma: ipam",
		`{"type": "ptp", "ipmasc": true, "ipMasqBackends": "nftables"}`:                                "ipMasqBackends: ipMasqBackend\nipmasc: ipMasq",
		`{"type": "macvlan", "maste": "eth0", "moed": "bridge"}`:                                       "maste: master\nmoed: mode",
		`{"type": "host-device", "devise": "eth0", "hwAdr": "", "pciBusId": "", "kernelPaths": ""}`:    "devise: device\nhwAdr: hwaddr\nkernelPaths: kernelpath",
		`{"type": "loopback", "capability": {}}`:                                                       "",
		`{"type": "loopback", "nam": "lo", "disableCheks": true}`:                                      "disableCheks: disableCheck\nnam: name",
		`{"type": "portmap", "masqAl": true, "sant": false, "conditionV4": [], "markMaskBit": 1}`:      "conditionV4: conditionsV4\nmarkMaskBit: markMasqBit\nmasqAl: masqAll\nsant: snat",
		`{"type": "firewall", "backened": "iptables", "ingressPolic": "", "firewallZone": "public"}`:   "backened: backend\nfirewallZone: firewalldZone\ningressPolic: ingressPolicy",
		`{"type": "tuning", "sysctls": {}, "promisk": true, "allMulti": true, "txQlen": 5}`:            "promisk: promisc\nsysctls: sysctl",
		`{"type": "bandwidth", "ingresRate": 1, "egressBurts": 2}`:                                     "egressBurts: egressBurst\ningresRate: ingressRate",
		`{"type": "bridge", "ipam": {"type": "host-local", "subnett": "", "range": [], "route": []}}`:  "ipam.range: ipam.ranges\nipam.route: ipam.routes\nipam.subnett: ipam.subnet",
		`{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"rangeStrat": "10.1.0.2"}]]}}`: "ipam.ranges.rangeStrat: ipam.ranges.rangeStart",
		`{"type": "ptp", "ipam": {"type": "static", "adresses": [], "addresses": [{"adress": ""}]}}`:   "ipam.addresses.adress: ipam.addresses.address\nipam.adresses: ipam.addresses",
		`{"type": "macvlan", "ipam": {"type": "dhcp", "subnett": "", "daemonSocketPat": ""}}`:          "",
		`{"type": "bridge", "args": {"cni": {"isGatway": 1}}, "runtimeConfig": {"isGatway": 1}}`:       "",
		`{"type": "tuning", "sysctl": {"net.core.somaxcon": "1"}, "capabilities": {"mca": true}}`:      "",
		`{"type": "ipvlan", "maste": "eth0"}`:                                                          "", // is not built in
		`{"type": "bridge", "isGatway": `:                                                              "",
		`{"type": 5, "isGatway": true}`:                                                                "",
	} {
		if got := misspeltIn(config, everyType); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", config, got, want)
		}
	}
}

// TestMisspeltSparesOtherPlugins of the same name, which the caller has registered.
func TestMisspeltSparesOtherPlugins(t *testing.T) {
	const config = `{"type": "bridge", "isGatway": true, "ipam": {"type": "host-local", "subnett": ""}}`
	for other, want := range map[string]string{
		"": "ipam.subnett: ipam.subnet\nisGatway: isGateway", "bridge": "", "host-local": "isGatway: isGateway",
	} {
		if got := misspeltIn(config, func(typ string) bool { return typ != other }); got != want {
			t.Errorf("%q is registered: got\n%s\nwant\n%s", other, got, want)
		}
	}
}

// documented are the examples in the reference plugins' documentation.
var documented = []string{
	`{"cniVersion": "1.0.0", "name": "mynet", "type": "bridge", "bridge": "mynet0", "isDefaultGateway": true, "forceAddress": false, "ipMasq": true,
		"hairpinMode": true, "ipam": {"type": "host-local", "subnet": "10.10.0.0/16"}}`,
	`{"cniVersion": "0.3.1", "name": "mynet", "type": "bridge", "bridge": "mynet0", "vlan": 100, "ipam": {}}`,
	`{"cniVersion": "1.0.0", "name": "mynet", "type": "bridge", "bridge": "mynet0", "vlanTrunk": [{"id": 101}, {"minID": 200, "maxID": 299}],
		"isGateway": true, "mtu": 1500, "promiscMode": true, "preserveDefaultVlan": false, "enabledad": true, "macspoofchk": true,
		"disableContainerInterface": true, "portIsolation": true, "ipMasqBackend": "nftables"}`,
	`{"name": "mynet", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.1.1.0/24"}, "dns": {"nameservers": ["10.1.1.1", "8.8.8.8"]}}`,
	`{"name": "mynet", "type": "macvlan", "master": "eth0", "linkInContainer": false, "mode": "bridge", "mtu": 1500, "bcqueuelen": 1000, "ipam": {"type": "dhcp"}}`,
	`{"cniVersion": "0.3.1", "type": "host-device", "device": "enp0s1", "hwaddr": "", "kernelpath": "", "pciBusID": "0000:3d:00.1", "runtimeConfig": {"deviceID": "0000:3d:00.1"}}`,
	`{"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}`,
	`{"type": "portmap", "capabilities": {"portMappings": true}, "snat": true, "markMasqBit": 13, "externalSetMarkChain": "CNI-HOSTPORT-SETMARK",
		"conditionsV4": ["!", "-d", "192.0.2.0/24"], "conditionsV6": ["!", "-d", "fc00::/7"], "masqAll": false, "backend": "iptables"}`,
	`{"type": "firewall", "backend": "firewalld", "firewalldZone": "trusted", "ingressPolicy": "same-bridge", "iptablesAdminChainName": "CNI-ADMIN"}`,
	`{"name": "mytuning", "type": "tuning", "capabilities": {"mac": true}, "mac": "c2:b0:57:49:47:f1", "mtu": 1454, "promisc": true, "allmulti": true,
		"txQLen": 1000, "dataDir": "/run/cni/tuning", "sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1"}}`,
	`{"name": "slowdown", "type": "bandwidth", "ingressRate": 123, "ingressBurst": 456, "egressRate": 123, "egressBurst": 456, "capabilities": {"bandwidth": true}}`,
	`{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.10.0.0/16", "rangeStart": "10.10.1.20", "rangeEnd": "10.10.3.50", "gateway": "10.10.0.254"},
		{"subnet": "172.16.5.0/24"}], [{"subnet": "3ffe:ffff:0:01ff::/64", "rangeStart": "3ffe:ffff:0:01ff::0010"}]], "routes": [{"dst": "0.0.0.0/0"},
		{"dst": "192.168.0.0/16", "gw": "10.10.5.1", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 0}], "dataDir": "/run/my-orchestrator/container-ipam-state", "resolvConf": "/etc/resolv.conf"}}`,
	`{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}, {"address": "3ffe:ffff:0:01ff::1/64"}],
		"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["8.8.8.8"], "domain": "example.com", "search": ["example.com"], "options": []}}}`,
}

// TestCorrectConfigurationsAreNotMisspelt: every field that the reference plugins read,
// and every configuration in their documentation and tests, and in this repository.
func TestCorrectConfigurationsAreNotMisspelt(t *testing.T) {
	const root = "../.."
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containernetworking/plugins")
	cmd.Dir = filepath.Join(root, "internal", "refplugins", "mains")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("where the reference plugins are: %v", err)
	}
	reference := strings.TrimSpace(string(out))
	for typ := range plugins {
		kind := "meta"
		if typ == "host-local" || typ == "static" {
			kind = "ipam"
		} else if _, err := os.Stat(filepath.Join(reference, "plugins", "main", typ)); err == nil {
			kind = "main"
		}
		for _, name := range fieldsRead(t, filepath.Join(reference, "plugins", kind, typ)) {
			config := fmt.Sprintf(`{"type": %q, %q: null}`, typ, name)
			if kind == "ipam" {
				config = fmt.Sprintf(`{"type": "bridge", "ipam": {"type": %q, %q: null}}`, typ, name)
			}
			// Some are below others, such as runtimeConfig.
			if got := misspeltIn(config, everyType); got != "" && !has(misspelt.Of(Lookup(typ).(configured).Configuration()), name) {
				t.Errorf("%s: %s", typ, got)
			}
		}
	}
	for _, config := range documented {
		if !json.Valid([]byte(config)) {
			t.Errorf("not valid: %s", config)
		}
		if got := misspeltIn(config, everyType); got != "" {
			t.Errorf("%s: %s", config, got)
		}
	}
	for dir, least := range map[string]int{reference: 30, root: 100} {
		n := 0
		for _, config := range configurations(t, dir) {
			n++
			if got := misspeltIn(config.text, everyType); got != "" {
				t.Errorf("%s: %s in %s", config.file, got, config.text)
			}
		}
		if n < least {
			t.Errorf("%s has only %d configurations of built-in plugins", dir, n)
		}
	}
}

// has reports whether a name is known at any level.
func has(known misspelt.Names, name string) bool {
	for k, below := range known {
		if k == name || has(below, name) {
			return true
		}
	}
	return false
}

// fieldsRead lists the names in the tags of a program's types.
func fieldsRead(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`json:"(\w+)`).FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

type inFile struct{ file, text string }

// configurations lists the objects with the type of a built-in plugin that are in Go
// strings, Markdown and configuration files.
func configurations(t *testing.T, root string) (all []inFile) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return fs.SkipDir
		}
		// The tests of misspelt fields have them on purpose.
		if strings.HasPrefix(entry.Name(), "fields_") || strings.Contains(path, "misspelt") {
			return nil
		}
		for _, text := range texts(t, path) {
			var value any
			if json.Unmarshal([]byte(text), &value) == nil {
				all = collect(all, path, value)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// texts returns the parts of a file that may be JSON.
func texts(t *testing.T, path string) (all []string) {
	t.Helper()
	switch ext := filepath.Ext(path); ext {
	case ".go":
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil // one that must not compile
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					all = append(all, text)
				}
			}
			return true
		})
	case ".md", ".conf", ".conflist", ".json":
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = []string{string(data)}
		if ext == ".md" {
			all = strings.Split(string(data), "```")
			for i, block := range all {
				_, all[i], _ = strings.Cut(block, "\n")
			}
		}
	}
	return all
}

func collect(all []inFile, path string, value any) []inFile {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			all = collect(all, path, one)
		}
	case map[string]any:
		if typ, ok := v["type"].(string); ok && plugins[typ] != nil {
			if text, err := json.Marshal(v); err == nil {
				all = append(all, inFile{path, string(text)})
			}
		}
		for _, one := range v {
			all = collect(all, path, one)
		}
	}
	return all
}
