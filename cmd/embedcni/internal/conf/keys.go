package conf

import (
	"maps"
	"slices"
	"strings"
)

// fields are those that a plugin decodes, and the kinds of their values. A test compares the
// tables with the sources of the reference plugins.
type fields map[string]kind

// listFields are those of a list of plugins (CNI specification 1.1.0, section 1), and
// loaded from files beside it.
var listFields = fields{
	"cniVersion": text, "cniVersions": array, "name": text, "plugins": array,
	"disableCheck": truth, "disableGC": truth, "loadOnlyInlinedPlugins": truth,
}

// anyPlugin are the fields that every plugin may have.
var anyPlugin = fields{
	"cniVersion": text, "name": text, "type": text, "capabilities": object, "ipam": object, "dns": object,
	"args": object, "runtimeConfig": object, "prevResult": object,
}

var pluginFields = map[string]fields{
	"bridge": {
		"bridge": text, "isGateway": truth, "isDefaultGateway": truth, "forceAddress": truth, "ipMasq": truth, "ipMasqBackend": text,
		"mtu": number, "hairpinMode": truth, "promiscMode": truth, "vlan": number, "vlanTrunk": array,
		"preserveDefaultVlan": truth, "macspoofchk": truth, "enabledad": truth, "disableContainerInterface": truth,
		"portIsolation": truth,
	},
	"ptp":         {"mtu": number, "ipMasq": truth, "ipMasqBackend": text},
	"macvlan":     {"master": text, "mode": text, "mtu": number, "mac": text, "linkInContainer": truth, "bcqueuelen": number},
	"ipvlan":      {"master": text, "mode": text, "mtu": number, "linkInContainer": truth},
	"vlan":        {"master": text, "vlanId": number, "mtu": number, "linkInContainer": truth},
	"host-device": {"device": text, "hwaddr": text, "kernelpath": text, "pciBusID": text},
	"flannel":     {"subnetFile": text, "dataDir": text, "delegate": object},
	"tap": {
		"multiQueue": truth, "mtu": number, "mac": text, "owner": number, "group": number, "selinuxContext": text, "bridge": text,
	},
	"dummy":    {},
	"loopback": {},
	"portmap": {
		"backend": text, "snat": truth, "masqAll": truth, "markMasqBit": number, "externalSetMarkChain": text,
		"conditionsV4": array, "conditionsV6": array,
	},
	"firewall":  {"backend": text, "iptablesAdminChainName": text, "firewalldZone": text, "ingressPolicy": text},
	"bandwidth": {"ingressRate": number, "ingressBurst": number, "egressRate": number, "egressBurst": number},
	"tuning":    {"sysctl": object, "mac": text, "promisc": truth, "mtu": number, "allmulti": truth, "txQLen": number, "dataDir": text},
	"sbr":       {"table": number, "addSourceHints": truth, "gateways": array},
	"vrf":       {"vrfname": text, "table": number},
}

var ipamFields = map[string]fields{
	"host-local": {
		"type": text, "ranges": array, "routes": array, "dataDir": text, "resolvConf": text,
		"subnet": text, "rangeStart": text, "rangeEnd": text, "gateway": text,
	},
	"static": {"type": text, "addresses": array, "routes": array, "dns": object},
	"dhcp":   {"type": text, "daemonSocketPath": text, "request": array, "provide": array, "priority": number},
}

var (
	rangeFields = fields{"subnet": text, "rangeStart": text, "rangeEnd": text, "gateway": text}
	routeFields = fields{"dst": text, "gw": text, "mtu": number, "advmss": number, "priority": number, "table": number, "scope": number}
)

// makers make an interface; the others change one.
var makers = []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "loopback", "tap", "flannel"}

// changers are useless in front of a maker.
var changers = []string{"portmap", "firewall", "bandwidth", "sbr", "vrf"}

// needed are the capabilities without which a plugin never gets what it works on.
var needed = map[string]string{"portmap": "portMappings"}

// nearest returns the known name that a name is most likely meant to be, or "".
func nearest(name string, known []string) string {
	best, distance := "", 3
	if len(name) > 40 { // longer than all of them
		return ""
	}
	if len(name) < 5 {
		distance = 2
	}
	for _, k := range known {
		if d := edits(strings.ToLower(name), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// edits returns how many letters must be changed, added or removed, or exchanged with the
// next one, to make b of a.
func edits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func names(f ...fields) (all []string) {
	for _, one := range f {
		all = slices.AppendSeq(all, maps.Keys(one))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
