package bandwidth

import (
	"crypto/sha512"
	"encoding/hex"
	"strings"
)

// Device is the name of the ifb device for a container on a network, computed as the
// reference plugin does: "bwp" and as much of a SHA-512 as an interface name has room
// for. A test holds it against the plugin.
//
// It is not the attachment's alone: other interfaces of the container on the network
// have the same, and so has container t1 on network "ne" as 1 on "net".
func Device(network, id string) string { return device(network + id) }

// OwnDevice is the device's name where the other one is taken. No other attachment
// has it.
func OwnDevice(network, id, ifName string) string {
	return device(strings.Join([]string{network, id, ifName}, "/")) // none has a slash in it
}

func device(of string) string {
	const longest = 15
	sum := sha512.Sum512([]byte(of))
	return ("bwp" + hex.EncodeToString(sum[:]))[:longest]
}
