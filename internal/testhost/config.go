package testhost

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// ConfDir makes a directory of configuration files.
func ConfDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return dir
}

// ConfOf returns a configuration of one plugin.
func ConfOf(name string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "x", "ipam": {"type": "y", "n": 1}}`, name)
}

// ListOf returns a configuration of two plugins.
func ListOf(name string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "x"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`, name)
}

// OddFields returns fields of the reference plugins, with values of the wrong
// types.
func OddFields() []string {
	return []string{
		`"ipMasq": "auto"`, `"ipMasq": {}`, `"ipMasq": null`, `"macspoofchk": {}`, `"mtu": "big"`, `"bridge": 5`, `"dataDir": []`, `"vlan": "all"`,
		`"ipam": {"type": "", "dataDir": 5}`, `"ipam": {"addresses": "10.1.0.2/24"}`,
		`"ipam": {}`, `"ipam": null`, `"ipam": "host-local"`, `"ipam": ["host-local"]`, `"ipam": {"type": 5}`, `"ipam": 5, "ipam": {"type": ""}`,
		`"portMappings": true`, `"sysctl": ["net.core.somaxconn"]`, `"device": 5`, `"args": "none"`, `"args": {"cni": []}`, `"runtimeConfig": 5`,
		`"dns": "192.0.2.53"`, `"dns": {"nameservers": "192.0.2.53"}`, `"capabilities": {"portMappings": "yes"}`, `"snat": "no"`, `"backend": 7`,
	}
}
