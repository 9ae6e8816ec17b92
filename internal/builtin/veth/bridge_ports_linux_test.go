package veth

import (
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
)

// seen are the VLANs of a port.
type seen struct {
	vlans links.VLANs
	err   error
}

func (s seen) VLANs(index int) (links.VLANs, error) {
	if index != 7 {
		return nil, errors.New("another port was asked for")
	}
	return s.vlans, s.err
}

// TestALostVLANOfAPortIsFound: it comes back, unless somebody has given the port another
// own VLAN.
func TestALostVLANOfAPortIsFound(t *testing.T) {
	own := func(id uint16) links.VLANRange { return links.VLANRange{First: id, Last: id, Access: true} }
	in := func(from, to uint16) links.VLANRange { return links.VLANRange{First: from, Last: to} }
	const trunk = `{"vlan": 7, "vlanTrunk": [{"minID": 100, "maxID": 103}, {"id": 9}]}`
	for name, tt := range map[string]struct {
		conf string
		has  links.VLANs
		want string
	}{
		"none is wanted":                  {`{}`, nil, ""},
		"an empty trunk":                  {`{"vlanTrunk": []}`, nil, ""},
		"as configured":                   {trunk, links.VLANs{in(9, 9), own(7), in(100, 103)}, ""},
		"in others too":                   {trunk, links.VLANs{in(8, 200), own(7)}, ""},
		"its own is lost":                 {`{"vlan": 7}`, nil, `VLANs of veth0: wanted "7 (its own)", found ""; fix`},
		"some are lost":                   {trunk, links.VLANs{own(7), in(102, 102)}, `VLANs of veth0: wanted "9, 100-101, 103", found ""; fix`},
		"all are lost":                    {trunk, nil, `VLANs of veth0: wanted "7 (its own), 9, 100-103", found ""; fix`},
		"its own is tagged":               {`{"vlan": 7}`, links.VLANs{in(7, 7)}, `own VLAN of veth0: wanted "7", found "none"; no fix: somebody has changed it`},
		"it has another own":              {`{"vlan": 7}`, links.VLANs{own(1)}, `own VLAN of veth0: wanted "7", found "1"; no fix: somebody has changed it`},
		"it has another own, and a trunk": {trunk, links.VLANs{own(1), in(7, 9)}, "VLANs of veth0: wanted \"100-103\", found \"\"; fix\nown VLAN of veth0: wanted \"7\", found \"1\"; no fix: somebody has changed it"},
	} {
		t.Run(name, func(t *testing.T) {
			port := links.Link{Index: 7, Name: "veth0"}
			port.Port.Master = 3
			all := expect.Value(mustLoad(t, tt.conf, "").port.portVLANs(seen{vlans: tt.has}.VLANs, port, &contract.Place{}, mustLoad(t, `{}`, "").restorePort))(t)
			var lines []string
			for _, d := range all {
				end := "; fix"
				if d.Why != "" {
					end = "; no fix: " + d.Why
				}
				if d.Kind != contract.BridgePort || d.Err == nil {
					t.Errorf("%+v", d)
				}
				lines = append(lines, d.Object+`: wanted "`+d.Wanted+`", found "`+d.Found+`"`+end)
			}
			expect.Same(t, "differences", strings.Join(lines, "\n"), tt.want)
		})
	}
	no := errors.New("no")
	_, err := mustLoad(t, trunk, "").port.portVLANs(seen{err: no}.VLANs, links.Link{Index: 7}, nil, nil)
	expect.Is(t, err, no)
}
