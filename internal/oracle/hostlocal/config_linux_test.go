package hostlocal

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

func request(config, args string) *plugin.Request {
	version := "1.0.0"
	if strings.Contains(config, `"0.2.0"`) {
		version = "0.2.0"
	}
	return &plugin.Request{Name: "podnet", Type: "host-local", CNIVersion: version, Config: []byte(config), Args: args}
}

// understood is a plugin's interpretation of a configuration.
type understood struct {
	Sets      []string        // "first-last" of each range, separated by commas
	Ranges    []string        // "first/length gateway" of each range
	Requested map[string]bool // addresses
	DataDir   string          // of the network
	Routes    []*types.Route
}

// ours returns a configuration as this module's plugin understands it: by what it
// would assign, and what it misses.
func ours(t *testing.T, r *plugin.Request) (understood, error) {
	t.Helper()
	p := ipam.NewHostLocal()
	sample, err := p.Sample(r)
	if err != nil {
		return understood{}, err
	}
	u := understood{Requested: map[string]bool{}, Routes: sample.Routes}
	for _, ip := range sample.IPs {
		ones, _ := ip.Address.Mask.Size()
		u.Ranges = append(u.Ranges, fmt.Sprintf("%s/%d %v", ip.Address.IP, ones, ip.Gateway))
	}
	for i, d := range expect.Value(p.Compare(t.Context(), r, nil))(t) {
		u.Sets = append(u.Sets, strings.TrimPrefix(d.Object, fmt.Sprintf("range set %d, ", i)))
	}
	dir, requested := ipam.Requested(r)
	for _, addr := range requested {
		u.Requested[addr.String()] = true
	}
	u.DataDir = dir
	return u, nil
}

// theirs returns a configuration as the reference plugin understands it.
func theirs(config, args string) (understood, error) {
	c, _, err := allocator.LoadIPAMConfig([]byte(config), args)
	if err != nil {
		return understood{}, err
	}
	u := understood{Requested: map[string]bool{}, DataDir: cmp.Or(c.DataDir, "/var/lib/cni/networks") + "/" + c.Name, Routes: c.Routes}
	for _, set := range c.Ranges {
		u.Sets = append(u.Sets, set.String())
		for _, r := range set {
			ones, _ := r.Subnet.Mask.Size()
			u.Ranges = append(u.Ranges, fmt.Sprintf("%s/%d %v", r.RangeStart, ones, r.Gateway))
		}
	}
	for _, a := range c.IPArgs {
		u.Requested[a.String()] = true
	}
	return u, nil
}

const head = `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", `

// configurations are accepted or refused as by the reference plugin.
var configurations = map[string]struct{ config, args string }{
	"old style":              {head + `"ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}`, ""},
	"old style, all fields":  {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.254", "dataDir": "/d", "resolvConf": "/r", "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.0.0.0/8", "gw": "10.1.0.9", "mtu": 1400, "priority": 3}]}}`, ""},
	"old style and ranges":   {head + `"ipam": {"subnet": "10.1.0.0/24", "ranges": [[{"subnet": "fd00::/64"}]]}}`, ""},
	"ranges":                 {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}, {"subnet": "10.2.0.0/16"}], [{"subnet": "fd00::/120", "rangeStart": "fd00::8"}]]}}`, ""},
	"runtime ranges":         {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}]]}, "runtimeConfig": {"ipRanges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]}}`, ""},
	"requests":               {head + `"ipam": {"subnet": "10.1.0.0/24"}, "args": {"cni": {"ips": ["10.1.0.5/24", "10.1.0.6"]}}, "runtimeConfig": {"ips": ["10.1.0.7", "10.1.0.5"]}}`, "IP=10.1.0.4;IgnoreUnknown=1;K8S=x"},
	"request, mapped":        {head + `"ipam": {"subnet": "10.1.0.0/24"}}`, "IP=::ffff:10.1.0.4"},
	"request, empty":         {head + `"ipam": {"subnet": "10.1.0.0/24"}, "runtimeConfig": {"ips": [""]}}`, ""},
	"request, garbage":       {head + `"ipam": {"subnet": "10.1.0.0/24"}, "runtimeConfig": {"ips": ["x"]}}`, ""},
	"args, garbage":          {head + `"ipam": {"subnet": "10.1.0.0/24"}}`, "IP=x"},
	"args, unknown":          {head + `"ipam": {"subnet": "10.1.0.0/24"}}`, "A=b"},
	"args, empty address":    {head + `"ipam": {"subnet": "10.1.0.0/24"}}`, "IP="},
	"no ipam":                {head + `"x": 1}`, ""},
	"no ranges":              {head + `"ipam": {}}`, ""},
	"empty set":              {head + `"ipam": {"ranges": [[]]}}`, ""},
	"no subnet":              {head + `"ipam": {"ranges": [[{"rangeStart": "10.1.0.1"}]]}}`, ""},
	"subnet, garbage":        {head + `"ipam": {"subnet": "10.1.0.0"}}`, ""},
	"host bits":              {head + `"ipam": {"subnet": "10.1.0.1/24"}}`, ""},
	"/30":                    {head + `"ipam": {"subnet": "10.1.0.0/30"}}`, ""},
	"/31":                    {head + `"ipam": {"subnet": "10.1.0.0/31"}}`, ""},
	"/127":                   {head + `"ipam": {"subnet": "fd00::/127"}}`, ""},
	"/0":                     {head + `"ipam": {"subnet": "0.0.0.0/0"}}`, ""},
	"mapped subnet":          {head + `"ipam": {"subnet": "::ffff:10.1.0.0/112"}}`, ""},
	"start outside":          {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}}`, ""},
	"end outside":            {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"}}`, ""},
	"end before start":       {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}}`, ""},
	"end of another family":  {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeEnd": "fd00::1"}}`, ""},
	"gateway elsewhere":      {head + `"ipam": {"subnet": "10.1.0.0/24", "gateway": "fd00::1"}}`, ""},
	"broadcast as the end":   {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.255"}}`, ""},
	"network as the start":   {head + `"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.0"}}`, ""},
	"mixed families":         {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "fd00::/64"}]]}}`, ""},
	"overlap in a set":       {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/16", "rangeEnd": "10.1.0.5"}]]}}`, ""},
	"one subnet, two ranges": {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.9"}, {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20"}]]}}`, ""},
	"overlap of sets":        {head + `"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.0.0.0/8"}]]}}`, ""},
	"two IPv4 in 0.2.0":      {`{"cniVersion": "0.2.0", "name": "podnet", "ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]}}`, ""},
	"dual stack in 0.2.0":    {`{"cniVersion": "0.2.0", "name": "podnet", "ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}}`, ""},
	"no JSON":                {`{`, ""},
	"wrong type":             {head + `"ipam": {"subnet": 5}}`, ""},
}

func TestConfigurationsAreUnderstoodAsByTheReference(t *testing.T) {
	for name, tt := range configurations {
		t.Run(name, func(t *testing.T) {
			got, err := ours(t, request(tt.config, tt.args))
			want, wantErr := theirs(tt.config, tt.args)
			t.Logf("ours: %v; theirs: %v", err, wantErr)
			expect.That(t, (err != nil) == (wantErr != nil) && reflect.DeepEqual(got, want), "got %+v, %v\nwant %+v, %v", got, err, want, wantErr)
		})
	}
}

// TestRandomRangesAreUnderstoodAsByTheReference checks the arithmetic.
func TestRandomRangesAreUnderstoodAsByTheReference(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	address := func(v6 bool) string {
		if v6 {
			return fmt.Sprintf("fd00::%x:%x", rnd.IntN(2), rnd.IntN(65536)&^rnd.IntN(65536))
		}
		return fmt.Sprintf("10.1.%d.%d", rnd.IntN(3), rnd.IntN(256)&^rnd.IntN(256))
	}
	accepted := 0
	for range 20000 {
		var sets []string
		for range 1 + rnd.IntN(2) {
			v6 := rnd.IntN(2) == 0
			var ranges []string
			for range 1 + rnd.IntN(2) {
				bits := 20 + rnd.IntN(12)
				if v6 {
					bits = 108 + rnd.IntN(20)
				}
				r := fmt.Sprintf(`"subnet": "%s/%d"`, address(v6), bits)
				for _, field := range []string{"rangeStart", "rangeEnd", "gateway"} {
					if rnd.IntN(3) == 0 {
						r += fmt.Sprintf(`, %q: %q`, field, address(v6))
					}
				}
				ranges = append(ranges, "{"+r+"}")
			}
			sets = append(sets, "["+strings.Join(ranges, ", ")+"]")
		}
		config := head + `"ipam": {"ranges": [` + strings.Join(sets, ", ") + `]}}`
		got, err := ours(t, request(config, ""))
		want, wantErr := theirs(config, "")
		if err != nil && wantErr == nil && strings.HasSuffix(err.Error(), "is empty") {
			continue
		}
		if wantErr == nil {
			accepted++
		}
		expect.Must(t, (err != nil) == (wantErr != nil) && reflect.DeepEqual(got, want),
			"%s\ngot %+v, %v\nwant %+v, %v", config, got, err, want, wantErr)
	}
	expect.That(t, accepted >= 50, "only %d were valid: the test shows too little", accepted)
}
