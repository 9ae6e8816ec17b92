package portindex

import (
	"slices"

	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// Free returns n ports of a range, or fewer if there are no more, that no record claims
// with one of the protocols and that are not to be avoided. Records of other hosts and
// boots count too. It goes on where it ended before, so that calls of one process choose
// different ports.
func (x *Index) Free(protocols []string, first, last uint16, n int, avoid func(uint16) bool) (free []uint16, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	claimed := make(map[uint16]bool)
	err = x.files.Each(x.read, func(_ string, slots []slot) {
		for _, s := range slots {
			if slices.ContainsFunc(protocols, func(p string) bool { return p[0] == s.letter }) {
				claimed[s.port] = true
			}
		}
	})
	if err != nil {
		return nil, err
	}
	size := int(last) - int(first) + 1
	for i := range size {
		port := uint16(int(first) + (x.next+i)%size)
		if !avoid(port) && !claimed[port] {
			if free = append(free, port); len(free) == n {
				x.next = (x.next + i + 1) % size
				break
			}
		}
	}
	return free, nil
}

// Within returns the attachments that claim ports of a range, on the host of rec and
// since the host was booted, those of its container included.
func (x *Index) Within(rec *record.Record, protocols []string, first, last uint16) ([]Holder, error) {
	var wanted []ports.Claim
	for _, protocol := range protocols {
		for port := int(first); port <= int(last); port++ {
			wanted = append(wanted, ports.Claim{Protocol: protocol, Port: uint16(port)})
		}
	}
	holders, err := x.Find(wanted)
	return slices.DeleteFunc(holders, func(h Holder) bool { return !isOf(h.Record, rec) }), err
}
