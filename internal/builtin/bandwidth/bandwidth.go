// Package bandwidth limits the traffic of a container's interface, in both
// directions, with token buckets (tbf). It takes the configuration of the
// reference plugin bandwidth (v1.9.1) and makes the same queues on the same
// devices, so that the CHECK and DEL of either understand the other's.
//
//	to the container    tbf on the host's end of the veth pair
//	from the container  the host's end redirects to an ifb device, which has a tbf
//
// The directions are the container's: ingress enters the container, egress
// leaves it.
package bandwidth

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

// Device returns the name of the ifb device for a container on a network,
// computed as in the reference plugin: "bwp" and as many digits of a SHA-512 as
// an interface name has room for. A test compares it with the plugin's.
//
// The name is not unique: other interfaces of the container on the network have
// the same, and container t1 on network "ne" has that of container 1 on "net".
func Device(network, id string) string { return device(network + id) }

// OwnDevice returns the device's name if the other one is taken. No other
// attachment has it.
func OwnDevice(network, id, ifName string) string {
	return device(strings.Join([]string{network, id, ifName}, "/")) // none has a slash in it
}

func device(of string) string {
	const longest = 15
	sum := sha512.Sum512([]byte(of))
	return ("bwp" + hex.EncodeToString(sum[:]))[:longest]
}
