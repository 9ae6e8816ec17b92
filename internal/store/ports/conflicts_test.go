package ports

import (
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// TestConflictsAreOtherContainersOnTheSameHost: a record without a host is of any, and
// the first holder is named for each wanted port.
func TestConflictsAreOtherContainersOnTheSameHost(t *testing.T) {
	http, dns := Claim{Protocol: "tcp", Port: 80}, Claim{Protocol: "udp", Port: 53}
	holder := func(id record.ID, boot, host string, c Claim) Holder {
		return Holder{Record: &record.Record{ContainerID: id, Boot: boot, Host: host}, Claim: c}
	}
	own := &record.Record{ContainerID: "own", Boot: "b", Host: "h"}
	for name, tt := range map[string]struct {
		holders []Holder
		want    []string
	}{
		"nobody":                {nil, nil},
		"itself":                {[]Holder{holder("own", "b", "h", http)}, nil},
		"of another boot":       {[]Holder{holder("c", "a", "h", http)}, nil},
		"on another host":       {[]Holder{holder("c", "b", "g", http)}, nil},
		"on an unknown host":    {[]Holder{holder("c", "b", "", http)}, []string{"tcp 80: c"}},
		"the first of two":      {[]Holder{holder("c", "b", "h", http), holder("d", "b", "h", http)}, []string{"tcp 80: c"}},
		"one for each, in turn": {[]Holder{holder("c", "b", "h", dns), holder("d", "b", "h", http)}, []string{"tcp 80: d", "udp 53: c"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range conflicts(own, []Claim{http, dns}, tt.holders) {
				got = append(got, c.Wanted.String()+": "+string(c.Record.ContainerID))
			}
			expect.Same(t, "conflicts", got, tt.want)
		})
	}
}
