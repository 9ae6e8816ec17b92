package main

import (
	"encoding/json"
	"fmt"
)

type object = map[string]any

// networkName is the name of the n-th network, and of its bridge.
func networkName(n int) string { return fmt.Sprintf("bench%d", n) }

// subnets returns the subnets of the n-th network.
func subnets(w work, n int) []string {
	v4, v6 := fmt.Sprintf("10.%d.0.0/16", 100+n), fmt.Sprintf("fd00:%d::/64", 100+n)
	switch w {
	case workLoopback:
		return nil
	case workDual:
		return []string{v4, v6}
	}
	return []string{v4}
}

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
	case workPtp:
		return []object{{"type": "ptp", "ipam": addresses(w, n, dataDir)}}
	case workPtpNAT:
		return []object{{"type": "ptp", "ipMasq": true, "ipam": addresses(w, n, dataDir)}}
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
	if w == workFirewall {
		return []object{main, {"type": "firewall", "backend": backend}, portmap}
	}
	return []object{main, portmap}
}

func addresses(w work, n int, dataDir string) object {
	var ranges [][]object
	routes := []object{{"dst": "0.0.0.0/0"}}
	for i, s := range subnets(w, n) {
		ranges = append(ranges, []object{{"subnet": s}})
		if i > 0 {
			routes = append(routes, object{"dst": "::/0"})
		}
	}
	ipam := object{"type": "host-local", "dataDir": dataDir, "ranges": ranges}
	if w == workPtp || w == workPtpNAT || w == workDefault { // a bridge that is the default gateway makes the routes itself
		ipam["routes"] = routes
	}
	return ipam
}

// netavarkConfig is netavark's input. Netavark allocates no addresses itself: i
// selects one.
func netavarkConfig(w work, id string, n, i int, port uint16) ([]byte, error) {
	var nets []object
	var ips []string
	for _, s := range subnets(w, n) {
		prefix := s[:len(s)-len(".0.0/16")]
		gateway, ip := prefix+".0.1", fmt.Sprintf("%s.%d.%d", prefix, (i+2)>>8, (i+2)&255)
		if s[len(s)-3:] == "/64" {
			prefix = s[:len(s)-len("/64")]
			gateway, ip = prefix+"1", fmt.Sprintf("%s%x", prefix, i+2)
		}
		nets = append(nets, object{"subnet": s, "gateway": gateway})
		ips = append(ips, ip)
	}
	name := networkName(n)
	return json.Marshal(object{
		"container_id": id, "container_name": id,
		"port_mappings": []object{{"container_port": 80, "host_ip": "", "host_port": port, "protocol": "tcp", "range": 1}},
		"networks":      object{name: object{"interface_name": "eth0", "static_ips": ips}},
		"network_info": object{name: object{
			"name": name, "id": fmt.Sprintf("%064x", n+1), "driver": "bridge", "network_interface": name,
			"subnets": nets, "ipv6_enabled": len(nets) > 1, "internal": false, "dns_enabled": false,
			"ipam_options": object{"driver": "host-local"},
		}},
	})
}
