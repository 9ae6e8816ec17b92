package tuning

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

func ptr[T any](v T) *T { return &v }

func request(config, args string) *plugin.Request {
	return &plugin.Request{IfName: "eth0.5", Type: "tuning", Config: []byte(config), Args: args}
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct {
		config, args string
		want         *config
	}{
		"nothing": {`{}`, "", &config{dataDir: "/run/cni/tuning"}},
		"everything": {`{"dataDir": "/d", "sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1"},
			"mac": "02:00:00:00:00:0A", "promisc": true, "mtu": 1400, "allmulti": false, "txQLen": 0}`, "",
			&config{dataDir: "/d", macText: "02:00:00:00:00:0A", sysctls: []sysctl{
				{"net.core.somaxconn", "/proc/sys/net/core/somaxconn", "500"},
				{"net.ipv4.conf.IFNAME.arp_filter", "/proc/sys/net/ipv4/conf/eth0.5/arp_filter", "1"},
			}, attributes: attributes{Mac: "02:00:00:00:00:0a", Promisc: ptr(true), Mtu: 1400, Allmulti: ptr(false), TxQLen: ptr(0)}}},
		"CNI_ARGS": {`{"mac": "02:00:00:00:00:01"}`, "MAC=02:00:00:00:00:02;IgnoreUnknown=1;A=b",
			&config{dataDir: "/run/cni/tuning", macText: "02:00:00:00:00:02", attributes: attributes{Mac: "02:00:00:00:00:02"}}},
		"capability": {`{"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"}}`, "MAC=02:00:00:00:00:02",
			&config{dataDir: "/run/cni/tuning", macText: "02:00:00:00:00:03", attributes: attributes{Mac: "02:00:00:00:00:03"}}},
		"args": {`{"mtu": 1, "promisc": true, "runtimeConfig": {"mac": "02:00:00:00:00:03"}, "args": {"cni": {
			"mac": "02:00:00:00:00:04", "promisc": false, "mtu": 1300, "allmulti": true, "txQLen": 7, "sysctl": {"net.core.somaxconn": "9"}}}}`, "",
			&config{dataDir: "/run/cni/tuning", macText: "02:00:00:00:00:04",
				sysctls:    []sysctl{{"net.core.somaxconn", "/proc/sys/net/core/somaxconn", "9"}},
				attributes: attributes{Mac: "02:00:00:00:00:04", Mtu: 1300, Allmulti: ptr(true), TxQLen: ptr(7)}}},
		"args over sysctl": {`{"sysctl": {"net.a": "1", "net.b": "2"}, "args": {"cni": {"sysctl": {"net.b": "3"}}}}`, "",
			&config{dataDir: "/run/cni/tuning", sysctls: []sysctl{{"net.a", "/proc/sys/net/a", "1"}, {"net.b", "/proc/sys/net/b", "3"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(request(tt.config, tt.args))
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ config, args, want string }{
		"sysctl elsewhere": {`{"sysctl": {"kernel.hostname": "x"}}`, "", `sysctl "kernel.hostname" is not one of a network namespace: their names begin with "net."`},
		"net itself":       {`{"sysctl": {"net": "x"}}`, "", `sysctl "net" is not one of a network namespace: their names begin with "net."`},
		"mac":              {`{"mac": "x"}`, "", `mac: address x: invalid MAC address`},
		"CNI_ARGS":         {`{}`, "MAC=02:00:00:00:00:02;A=b", "CNI_ARGS: ARGS: unknown args [\"A=b\"]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(request(tt.config, tt.args))
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
	for _, config := range []string{`{`, `{"sysctl": {"net.a": "1", "net.a": "2"}}`, `{"sysctl": {"net.a": 1}}`, `{"mtu": "1"}`} {
		expect.Fails(t, config+": no error", expect.Err(parse(request(config, ""))))
	}
}

func TestAllowlist(t *testing.T) {
	const list = "\n^net\\.ipv4\\.\n  somaxconn$\n"
	for key, want := range map[string]bool{
		"net.ipv4.ip_forward": true, "net.core.somaxconn": true, "net.core.somaxconn2": false, "xnet.ipv4.": false,
	} {
		if err := allowed(list, []sysctl{{key: "net.ipv4.x"}, {key: key}}); (err == nil) != want {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, list := range []string{"", "("} {
		expect.Fails(t, "the list "+list+" allows something", allowed(list, []sysctl{{key: "net.a"}}))
	}
}

// TestAnInterfaceNameThatLeadsElsewhereIsCalledThat: the error names the
// interface, not the sysctl, which may belong to a network namespace.
func TestAnInterfaceNameThatLeadsElsewhereIsCalledThat(t *testing.T) {
	for _, name := range []string{"a/b", "../eth0", "..", "."} {
		r := request(`{"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}`, "")
		r.IfName = name
		_, err := parse(r)
		var said *types.Error
		if !errors.As(err, &said) || said.Code != types.ErrInvalidEnvironmentVariables || !strings.HasPrefix(said.Msg, fmt.Sprintf("CNI_IFNAME is %q", name)) {
			t.Errorf("%q: %v", name, err)
		}
		r.Config = []byte(`{"mtu": 1400}`)
		if _, err := parse(r); err != nil {
			t.Errorf("%q without a sysctl: %v", name, err)
		}
	}
}
