package hostlocal

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/embedcni/cni/plugin"
)

func request(config, args string) *plugin.Request {
	version := "1.0.0"
	if strings.Contains(config, `"0.2.0"`) {
		version = "0.2.0"
	}
	return &plugin.Request{Name: "podnet", Type: "host-local", CNIVersion: version, Config: []byte(config), Args: args}
}

// described is what both implementations understand of a configuration.
type described struct {
	Sets      []string
	Requested map[string]bool
	DataDir   string
	Resolv    string
	Routes    []*types.Route
}

func ours(t *testing.T, config, args string) (described, error) {
	c, err := parse(request(config, args))
	if err != nil {
		return described{}, err
	}
	d := described{Requested: map[string]bool{}, DataDir: c.dir, Resolv: c.resolvConf, Routes: c.routes}
	for _, set := range c.sets {
		var text []string
		for _, r := range set {
			text = append(text, fmt.Sprintf("%v %v %v", r.subnet, r, r.gateway))
		}
		d.Sets = append(d.Sets, strings.Join(text, ", "))
	}
	for _, a := range c.requested {
		d.Requested[a.String()] = true
	}
	return d, nil
}

func theirs(t *testing.T, config, args string) (described, error) {
	c, _, err := allocator.LoadIPAMConfig([]byte(config), args)
	if err != nil {
		return described{}, err
	}
	d := described{Requested: map[string]bool{}, DataDir: c.DataDir, Resolv: c.ResolvConf, Routes: c.Routes}
	if d.DataDir == "" {
		d.DataDir = "/var/lib/cni/networks"
	}
	d.DataDir += "/" + c.Name
	for _, set := range c.Ranges {
		var text []string
		for _, r := range set {
			ones, _ := r.Subnet.Mask.Size()
			text = append(text, fmt.Sprintf("%s/%d %v %v", r.Subnet.IP, ones, r.String(), r.Gateway))
		}
		d.Sets = append(d.Sets, strings.Join(text, ", "))
	}
	for _, a := range c.IPArgs {
		d.Requested[a.String()] = true
	}
	return d, nil
}

const head = `{"cniVersion": "1.0.0", "name": "podnet", "type": "bridge", `

// configurations are understood, or refused, as the reference plugin does.
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
			got, err := ours(t, tt.config, tt.args)
			want, wantErr := theirs(t, tt.config, tt.args)
			t.Logf("ours: %v; theirs: %v", err, wantErr)
			if (err != nil) != (wantErr != nil) || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v\nwant %+v, %v", got, err, want, wantErr)
			}
		})
	}
}

// An empty range that the reference plugin accepts, and then leaves, handing out
// addresses that nobody configured.
func TestARangeWithoutAddressesIsRefused(t *testing.T) {
	_, err := ours(t, head+`"ipam": {"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.255"}}`, "")
	want := `network "podnet": ipam: range set 0: the range from 10.1.0.255 to 10.1.0.254 in the subnet 10.1.0.0/24 is empty`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestRandomRangesAreUnderstoodAsByTheReference holds the arithmetic.
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
		got, err := ours(t, config, "")
		want, wantErr := theirs(t, config, "")
		if err != nil && wantErr == nil && strings.HasSuffix(err.Error(), "is empty") {
			continue
		}
		if wantErr == nil {
			accepted++
		}
		if (err != nil) != (wantErr != nil) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%s\ngot %+v, %v\nwant %+v, %v", config, got, err, want, wantErr)
		}
	}
	if accepted < 50 {
		t.Errorf("only %d were valid: the test shows too little", accepted)
	}
}

func TestResolvConf(t *testing.T) {
	const text = "# nameserver 1.1.1.1\n;x y\n  nameserver 10.0.0.1 # c\nnameserver fd00::1\n\ndomain a.example\nsearch b c\nsearch d\noptions ndots:2 rotate\nsortlist x\nnameserver\n"
	want := types.DNS{
		Nameservers: []string{"10.0.0.1", "fd00::1"}, Domain: "a.example",
		Search: []string{"b", "c", "d"}, Options: []string{"ndots:2", "rotate"},
	}
	if got := parseResolvConf(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
