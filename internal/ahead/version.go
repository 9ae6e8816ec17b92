package ahead

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/invoke"
)

// module is that of the reference plugins.
const module = "github.com/containernetworking/plugins"

// Versions knows which executables are reference plugins, and of which version.
// It may be used by many goroutines. The zero Versions is ready for use.
type Versions struct {
	mu   sync.Mutex
	seen map[string]seen // by type and path
}

type seen struct {
	file    os.FileInfo
	version string // empty: it is another plugin, or of no known version
}

// Makes reports whether all that the plugin of a type makes for all containers is
// known: nothing that two at the same time could make twice, or what Rules says.
func (v *Versions) Makes(ctx context.Context, typ, path string, config []byte) bool {
	return makes(v.of(ctx, typ, path), typ, config)
}

func makes(version, typ string, config []byte) bool {
	var major, minor, patch int
	if n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n != 3 || err != nil {
		return false
	}
	if major == 0 && minor == oldest {
		minor = 0 // of the line 1
	} else if major != 1 || minor > newest {
		return false
	}
	switch typ {
	case "firewall":
		return minor >= sinceIsolation || !hasPolicy(config)
	case "bridge":
		return !hasVLAN(config)
	case "portmap", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "dummy", "tap", "loopback", "tuning", "bandwidth", "sbr":
		return true
	}
	return false // vrf makes a device that is not there
}

// The versions that are known, from 0.9.0 on.
const (
	oldest = 9
	newest = 9
	// sinceIsolation is when the comments of the rules for an ingress policy
	// became what they are.
	sinceIsolation = 6
)

func hasPolicy(config []byte) bool {
	var conf struct{ IngressPolicy string }
	return json.Unmarshal(config, &conf) != nil || conf.IngressPolicy != "" && conf.IngressPolicy != "open"
}

// hasVLAN reports whether the bridge's gateway may be in a VLAN, on an interface
// of its own that is made when it is not there.
func hasVLAN(config []byte) bool {
	var conf struct{ VLAN int }
	return json.Unmarshal(config, &conf) != nil || conf.VLAN != 0
}

// of returns the version of the reference plugin at a path, without the "v".
func (v *Versions) of(ctx context.Context, typ, path string) string {
	file, err := os.Stat(path)
	if err != nil {
		return ""
	}
	key := typ + " " + path
	if s, ok := v.known(key); ok && os.SameFile(s.file, file) && s.file.ModTime().Equal(file.ModTime()) && s.file.Size() == file.Size() {
		return s.version
	}
	version := ask(ctx, typ, path)
	if ctx.Err() == nil {
		v.note(key, seen{file, version})
	}
	return version
}

func (v *Versions) known(key string) (s seen, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok = v.seen[key]
	return s, ok
}

func (v *Versions) note(key string, s seen) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.seen == nil {
		v.seen = make(map[string]seen)
	}
	v.seen[key] = s
}

// ask reads the version from what Go writes into an executable, and if that is a
// reference plugin but of no version there, has it say so itself.
func ask(ctx context.Context, typ, path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil || !strings.HasPrefix(info.Path, module+"/plugins/") || !strings.HasSuffix(info.Path, "/"+typ) {
		return ""
	}
	if info.Main.Path == module && info.Main.Replace == nil {
		if version := parse(info.Main.Version); version != "" {
			return version
		}
	}
	// It says so if it is asked to do nothing.
	//
	//	CNI portmap plugin v1.9.1
	//	CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0
	const enough = time.Second
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	out, err := invoke.Run(ctx, invoke.Request{Path: path}, invoke.Limits{})
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out.Stderr), "\n")
	version, ok := strings.CutPrefix(first, "CNI "+typ+" plugin ")
	if !ok {
		return ""
	}
	return parse(version)
}

// parse returns a released version, without the "v" and what a distribution adds;
// nothing of any other.
func parse(version string) string {
	version, metadata, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	var major, minor, patch int
	n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	if n != 3 || err != nil || version != fmt.Sprintf("%d.%d.%d", major, minor, patch) || strings.Contains(metadata, "dirty") {
		return ""
	}
	return version
}
