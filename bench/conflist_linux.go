package main

import (
	"encoding/json"
	"fmt"
)

type object = map[string]any

// networkName is the name of the n-th network, and of its bridge.
func networkName(n int) string { return fmt.Sprintf("bench%d", n) }

// subnet returns the subnet of the n-th network.
func subnet(n int) string { return fmt.Sprintf("10.%d.0.0/16", 100+n) }

// conflist is the configuration of the n-th network for CNI runtimes.
func conflist(w work, backend string, n int, dataDir string) ([]byte, error) {
	return json.Marshal(object{"cniVersion": "1.0.0", "name": networkName(n), "plugins": plugins(w, backend, n, dataDir)})
}

func plugins(w work, backend string, n int, dataDir string) []object {
	main := object{"type": "bridge", "bridge": networkName(n), "isDefaultGateway": true, "ipam": addresses(w, n, dataDir)}
	portmap := object{"type": "portmap", "capabilities": object{"portMappings": true}}
	switch w {
	case workLoopback:
		return []object{{"type": "loopback"}}
	case workBridge:
		return []object{main}
	case workDefault:
		// As nerdctl and Podman write it.
		return []object{
			{"type": "bridge", "bridge": networkName(n), "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": addresses(w, n, dataDir)},
			portmap, {"type": "firewall"}, {"type": "tuning"},
		}
	}
	main["ipMasq"] = true
	if backend != native {
		main["ipMasqBackend"], portmap["backend"] = backend, backend
	}
	return []object{main, portmap}
}

func addresses(w work, n int, dataDir string) object {
	ipam := object{"type": "host-local", "dataDir": dataDir, "ranges": [][]object{{{"subnet": subnet(n)}}}}
	if w == workDefault { // a bridge that is the default gateway makes the routes itself
		ipam["routes"] = []object{{"dst": "0.0.0.0/0"}}
	}
	return ipam
}

// netavarkConfig is netavark's input. Netavark allocates no addresses itself: the
// container's number selects one.
func netavarkConfig(c container) ([]byte, error) {
	name, prefix := networkName(c.Network), fmt.Sprintf("10.%d.", 100+c.Network)
	return json.Marshal(object{
		"container_id": c.ID, "container_name": c.ID,
		"port_mappings": []object{{"container_port": 80, "host_ip": "", "host_port": c.Ports[0], "protocol": "tcp", "range": 1}},
		"networks":      object{name: object{"interface_name": "eth0", "static_ips": []string{fmt.Sprintf("%s%d.%d", prefix, (c.N+2)>>8, (c.N+2)&255)}}},
		"network_info": object{name: object{
			"name": name, "id": fmt.Sprintf("%064x", c.Network+1), "driver": "bridge", "network_interface": name,
			"subnets":      []object{{"subnet": subnet(c.Network), "gateway": prefix + "0.1"}},
			"ipv6_enabled": false, "internal": false, "dns_enabled": false, "ipam_options": object{"driver": "host-local"},
		}},
	})
}
