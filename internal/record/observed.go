package record

import (
	"net/netip"
	"time"
)

// Observed are the addresses that the interfaces of an attachment had in the container
// when a caller last asked: those of SLAAC and DHCP come after the ADD, and change.
//
// Only reports use them. They are not of the ADD, so nothing is released, removed,
// compared or repaired by them; see Attachment.Result.
type Observed struct {
	Time      time.Time         `json:"time"`
	Addresses []ObservedAddress `json:"addresses"`
}

// ObservedAddress is an address of an interface in the container.
type ObservedAddress struct {
	Interface string       `json:"interface"`
	Prefix    netip.Prefix `json:"prefix"` // the address itself, not masked
	Gateway   netip.Addr   `json:"gateway"`
}
