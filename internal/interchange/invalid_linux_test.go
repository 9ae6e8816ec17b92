package interchange

// internalError is the reference plugins' code for unclassified errors.
const internalError = 999

// codesThatDiffer maps our codes to the configurations below for which the
// reference plugins return internalError. Ours return 7, "invalid network
// config", or 6, "failed to decode content": they name the defect, and a retry
// is useless. All other codes are equal.
func codesThatDiffer() map[uint][]string {
	return map[uint][]string{
		6: {
			"bridge mtu", "bridge wrong type",
			"host-local subnet",
			"static gateway",
		},
		7: {
			"bandwidth alone", "bandwidth rate without burst", "bandwidth burst without rate",
			"bandwidth burst too large",
			"bridge vlan", "bridge vlanTrunk id", "bridge vlanTrunk range", "bridge vlanTrunk half a range",
			"bridge hairpin and promiscuous", "bridge without interface and with IPAM", "bridge ipMasqBackend",
			"bridge mac", "bridge is another link", "bridge has another address",
			"firewall alone", "firewall ingressPolicy",
			"host-device without device", "host-device hwaddr", "host-device pciBusID",
			"host-local without a range", "host-local tiny subnet", "host-local start outside",
			"host-local end before start", "host-local overlapping ranges", "host-local overlapping sets",
			"host-local families in one set",
			"macvlan mode", "macvlan mtu",
			"portmap alone", "portmap backend", "portmap mark and chain", "portmap markMasqBit", "portmap host port 0",
			"portmap host port", "portmap container port", "portmap protocol", "portmap host address",
			"ptp ipMasqBackend", "ptp without IPAM",
			"static address", "static CNI_ARGS",
			"tuning alone", "tuning sysctl outside of net", "tuning mac",
		},
	}
}

// invalid returns configurations that both sides must refuse.
func invalid() []configuration {
	bad := func(name string, conf string) configuration {
		c := one("invalid "+name, conf)
		c.fails = true
		return c
	}
	behind := func(name, conf, caps string) configuration {
		c := chained("invalid "+name, conf)
		c.fails, c.network.caps = true, caps
		return c
	}
	onDevice := func(c configuration) configuration { c.network.prepare = device; return c }
	withPorts := func(name, fields, caps string) configuration {
		return behind("portmap "+name, `{"type": "portmap", "capabilities": {"portMappings": true}`+fields+`}`, caps)
	}
	const onePort = `{"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`
	badIPAM := func(name, fields string) configuration {
		return bad("host-local "+name, `{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "STATE/ipam"`+fields+`}}`)
	}
	return []configuration{
		bad("bridge vlan", `{"type": "bridge", "vlan": 4095, IPAM}`),
		bad("bridge vlanTrunk id", `{"type": "bridge", "vlanTrunk": [{"id": 4095}], IPAM}`),
		bad("bridge vlanTrunk range", `{"type": "bridge", "vlanTrunk": [{"minID": 30, "maxID": 20}], IPAM}`),
		bad("bridge vlanTrunk half a range", `{"type": "bridge", "vlanTrunk": [{"minID": 30}], IPAM}`),
		bad("bridge hairpin and promiscuous", `{"type": "bridge", "hairpinMode": true, "promiscMode": true, IPAM}`),
		bad("bridge without interface and with IPAM", `{"type": "bridge", "disableContainerInterface": true, IPAM}`),
		bad("bridge ipMasqBackend", `{"type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "pf", IPAM}`),
		bad("bridge mac", `{"type": "bridge", "args": {"cni": {"mac": "zz"}}, IPAM}`),
		bad("bridge mtu", `{"type": "bridge", "mtu": "large", IPAM}`),
		bad("bridge is another link", `{"type": "bridge", "bridge": "up0", IPAM}`).with(func(c *configuration) {
			c.network.prepare = device
		}),
		bad("bridge has another address", `{"type": "bridge", "isGateway": true, IPAM}`).with(func(c *configuration) {
			c.network.prepare = otherGateway("10.77.0.200/24")
		}),
		bad("bridge with an IPAM that gives nothing", `{"type": "bridge", "ipam": {"type": "static", "addresses": []}}`),
		bad("ptp ipMasqBackend", `{"type": "ptp", "ipMasq": true, "ipMasqBackend": "pf", IPAM}`),
		bad("ptp without IPAM", `{"type": "ptp"}`),
		bad("ptp with an IPAM that gives nothing", `{"type": "ptp", "ipam": {"type": "static", "addresses": []}}`),
		badIPAM("without a range", ``),
		badIPAM("tiny subnet", `, "ranges": [[{"subnet": "10.77.0.4/31"}]]`),
		badIPAM("subnet", `, "subnet": "10.77.0.0/33"`),
		badIPAM("start outside", `, "subnet": "10.77.0.0/24", "rangeStart": "10.78.0.1"`),
		badIPAM("end before start", `, "subnet": "10.77.0.0/24", "rangeStart": "10.77.0.20", "rangeEnd": "10.77.0.10"`),
		badIPAM("overlapping ranges", `, "ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "10.77.0.0/16"}]]`),
		badIPAM("overlapping sets", `, "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.77.0.0/16"}]]`),
		badIPAM("families in one set", `, "ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "fd77::/64"}]]`),
		badIPAM("an address of no range", `, "subnet": "10.77.0.0/24"`).with(func(c *configuration) {
			c.network.args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", "10.99.0.1"}}
		}),
		badIPAM("the gateway's address", `, "subnet": "10.77.0.0/24"`).with(func(c *configuration) {
			c.network.args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", "10.77.0.1"}}
		}),
		badIPAM("a resolvConf that is missing", `, "subnet": "10.77.0.0/24", "resolvConf": "STATE/none"`),
		bad("static address", `{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.9"}]}}`),
		bad("static gateway", `{"type": "bridge", "ipam": {"type": "static", "addresses": [{"address": "10.77.0.9/24", "gateway": "x"}]}}`),
		bad("static CNI_ARGS", `{"type": "bridge", "ipam": {"type": "static"}}`).with(func(c *configuration) {
			c.network.args = [][2]string{{"IgnoreUnknown", "1"}, {"IP", "10.77.0.9"}}
		}),
		bad("macvlan master", `{"type": "macvlan", "master": "none0", IPAM}`),
		bad("macvlan without master", `{"type": "macvlan", IPAM}`),
		onDevice(bad("macvlan mode", `{"type": "macvlan", "master": "up0", "mode": "loud", IPAM}`)),
		onDevice(bad("macvlan mtu", `{"type": "macvlan", "master": "up0", "mtu": 9000, IPAM}`)),
		bad("host-device without device", `{"type": "host-device", IPAM}`),
		bad("host-device that is missing", `{"type": "host-device", "device": "none0", IPAM}`),
		bad("host-device hwaddr", `{"type": "host-device", "hwaddr": "zz", IPAM}`),
		bad("host-device kernelpath", `{"type": "host-device", "kernelpath": "/sys/devices/none", IPAM}`),
		bad("host-device pciBusID", `{"type": "host-device", "pciBusID": "0000:99:99.9", IPAM}`),
		bad("portmap alone", `{"type": "portmap"}`),
		bad("firewall alone", `{"type": "firewall", "backend": "iptables"}`),
		bad("tuning alone", `{"type": "tuning", "dataDir": "STATE/tuning", "mtu": 1400}`),
		bad("bandwidth alone", `{"type": "bandwidth", "ingressRate": 100, "ingressBurst": 100}`),
		withPorts("backend", `, "backend": "pf"`, onePort),
		withPorts("mark and chain", `, "markMasqBit": 3, "externalSetMarkChain": "X"`, onePort),
		withPorts("markMasqBit", `, "markMasqBit": 32`, onePort),
		withPorts("host port 0", ``, `{"portMappings": [{"hostPort": 0, "containerPort": 80, "protocol": "tcp"}]}`),
		withPorts("host port", ``, `{"portMappings": [{"hostPort": -1, "containerPort": 80, "protocol": "tcp"}]}`),
		withPorts("container port", ``, `{"portMappings": [{"hostPort": 80, "containerPort": 0, "protocol": "tcp"}]}`),
		withPorts("protocol", ``, `{"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "icmp"}]}`),
		withPorts("host address", ``, `{"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "host"}]}`).with(func(c *configuration) {
			c.differs = []string{"route_localnet"} // theirs has set it on the bridge by then
		}),
		behind("firewall ingressPolicy", `{"type": "firewall", "backend": "iptables", "ingressPolicy": "closed"}`, ``),
		behind("tuning sysctl", `{"type": "tuning", "dataDir": "STATE/tuning", "sysctl": {"net.none.such": "1"}}`, ``),
		behind("tuning sysctl outside of net", `{"type": "tuning", "dataDir": "STATE/tuning", "sysctl": {"kernel.hostname": "x"}}`, ``),
		behind("tuning sysctl that climbs", `{"type": "tuning", "dataDir": "STATE/tuning", "sysctl": {"net/../kernel/hostname": "x"}}`, ``),
		behind("tuning mac", `{"type": "tuning", "dataDir": "STATE/tuning", "mac": "zz"}`, ``),
		behind("tuning mtu", `{"type": "tuning", "dataDir": "STATE/tuning", "mtu": 70000}`, ``),
		behind("bandwidth rate without burst", `{"type": "bandwidth", "ingressRate": 100}`, ``),
		behind("bandwidth burst without rate", `{"type": "bandwidth", "egressBurst": 100}`, ``),
		behind("bandwidth burst too large", `{"type": "bandwidth", "ingressRate": 100, "ingressBurst": 40000000000}`, ``),
		bad("bridge wrong type", `{"type": "bridge", "isGateway": "yes", IPAM}`),
	}
}
