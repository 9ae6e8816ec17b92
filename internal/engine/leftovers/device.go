package leftovers

import "encoding/json"

// DeviceFact is the key of the note that identifies the attachment's interface,
// a [Device].
const DeviceFact = "interface"

// Device identifies an attachment's interface by properties that a container's root
// cannot forge. It is noted when the interface has been made, or moved in.
type Device struct {
	Index    int    `json:"index"`              // in the container
	Kind     string `json:"kind"`               // "macvlan", "veth"; "device" for hardware
	MAC      string `json:"mac,omitempty"`      // at the beginning
	Parent   int    `json:"parent,omitempty"`   // of the interface below, or at the other end
	OnHost   bool   `json:"onHost,omitempty"`   // Parent is an index of the host's
	PermMAC  string `json:"permMAC,omitempty"`  // of hardware
	Bus      string `json:"bus,omitempty"`      // that hardware is on: "pci"
	Dev      string `json:"dev,omitempty"`      // and its name there: "0000:00:1f.6"
	HostName string `json:"hostName,omitempty"` // of the interface on the host, to which it goes back

	// Settled: it is gone, or back on the host. An interface like it is another's.
	Settled bool `json:"settled,omitempty"`
}

// DecodeDevice reads the note about an interface. It returns nil if there is none.
func DecodeDevice(fact json.RawMessage) *Device {
	d := &Device{}
	if fact == nil || json.Unmarshal(fact, d) != nil {
		return nil
	}
	return d
}

// Physical reports whether the device has an identity that no namespace and no
// root user can change. A vlan or ipvlan may have its parent's permanent
// address, and so may others.
func (d *Device) Physical() bool { return d.Dev != "" || d.Kind == "device" && d.PermMAC != "" }

// Traceable reports whether the device can be told from all others outside of its
// container too.
func (d *Device) Traceable() bool { return d.Physical() || d.Kind == "veth" && d.OnHost }

// Same reports whether both are one interface of the host's.
func (d *Device) Same(o *Device) bool {
	if d.Physical() {
		return d.Kind == o.Kind && d.PermMAC == o.PermMAC && d.Bus == o.Bus && d.Dev == o.Dev
	}
	return d.Kind == o.Kind && d.HostName == o.HostName && d.OnHost && o.OnHost && d.Parent == o.Parent
}
