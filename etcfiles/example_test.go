package etcfiles_test

import (
	"encoding/json"
	"fmt"
	"log"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/etcfiles"
)

// The files of a container's /etc, from the Result of Setup or of Lookup. WriteHosts and
// WriteResolvConf write them.
func Example() {
	stored := []byte(`{
		"DNS": [{"nameservers": ["10.88.0.1"], "search": ["podnet.internal"]}],
		"Networks": [{"Name": "podnet", "IfName": "eth0", "Interfaces": [
			{"Name": "eth0", "Sandbox": "/run/netns/web-1", "Addresses": [{"Prefix": "10.88.0.2/24", "Gateway": "10.88.0.1"}]}
		]}]
	}`)
	var result cni.Result
	if err := json.Unmarshal(stored, &result); err != nil {
		log.Fatal(err)
	}
	hosts, err := etcfiles.Hosts(&result, []string{"web-1", "web"}, etcfiles.Entry{Addr: result.IPv4().Gateway, Names: []string{"host.internal"}})
	if err != nil {
		log.Fatal(err)
	}
	resolv, err := etcfiles.ResolvConf(&result)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s---\n%s", hosts, resolv)
	// Output:
	// 127.0.0.1	localhost
	// ::1	localhost ip6-localhost ip6-loopback
	// 10.88.0.2	web-1 web
	// 10.88.0.1	host.internal
	// ---
	// nameserver 10.88.0.1
	// search podnet.internal
}
