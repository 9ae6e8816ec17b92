package etcfiles_test

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/etcfiles"
)

// The files of a container's /etc, from the Result of Setup or of Lookup.
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

// The files of a container, to be mounted into it. They are replaced at once: a container that
// reads them sees the old text or the new one.
func ExampleWriteHosts() {
	dir, err := os.MkdirTemp("", "web-1")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	result := &cni.Result{DNS: []types.DNS{{Nameservers: []string{"10.88.0.1"}}}} // Setup returns it
	if err := etcfiles.WriteHosts(filepath.Join(dir, "hosts"), result, []string{"web-1"}); err != nil {
		log.Fatal(err)
	}
	if err := etcfiles.WriteResolvConf(filepath.Join(dir, "resolv.conf"), result); err != nil {
		log.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	fmt.Println(len(files), err)
	// Output: 2 <nil>
}
