package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
)

// module is the path of the reference plugins' module.
const module = "github.com/containernetworking/plugins"

// References finds out which executables are reference plugins of a released version. It is
// safe for concurrent use. The zero References is ready to use.
type References struct {
	seen sync.Map // of a seen, by root, type and path
}

type seen struct {
	file        os.FileInfo
	isReference bool
}

// races reports whether two ADDs of the executable at the same time may make something
// twice that containers share: a VRF, a gateway in a VLAN, or whatever an unknown plugin
// does. About the chains of portmap and firewall, see execution.alone.
func (v *References) races(ctx context.Context, root invoke.Root, typ, path string, config []byte) bool {
	t := conflist.Known(typ)
	return !t.Concurrent || typ == conflist.Bridge && hasVLAN(config) || !v.has(ctx, root, typ, path)
}

// hasVLAN reports whether the bridge's gateway may be in a VLAN, on an
// interface of its own that the plugin creates if it is missing.
func hasVLAN(config []byte) bool {
	var conf struct{ VLAN int }
	return json.Unmarshal(config, &conf) != nil || conf.VLAN != 0
}

// isReference reports whether the executable of a type is known to be the reference
// plugin. Its path is empty if the record has none: an executable runs the IPAM plugin that
// it finds.
func (r *Runtime) isReference(ctx context.Context, typ, path string) bool {
	if path == "" {
		found, _ := r.executable(typ) // if there is none, the path stays empty, where no file is
		path = found.Path
	}
	return r.References.has(ctx, r.Root, typ, path)
}

// has reports whether the executable of a type at a path in root is the reference plugin.
func (v *References) has(ctx context.Context, root invoke.Root, typ, path string) bool {
	var file os.FileInfo
	if err := root.Do(func() (err error) {
		file, err = os.Stat(path)
		return err
	}); err != nil {
		return false
	}
	key := string(root) + " " + typ + " " + path
	before, _ := v.seen.Load(key)
	if s, ok := before.(seen); ok && os.SameFile(s.file, file) && s.file.ModTime().Equal(file.ModTime()) && s.file.Size() == file.Size() {
		return s.isReference
	}
	// A reference plugin has 3 to 6 MB, and 31 MB with the race detector.
	is := file.Size() <= 64<<20 && ask(ctx, root, typ, path)
	if ctx.Err() == nil {
		v.seen.Store(key, seen{file, is})
	}
	return is
}

// infoStart begins the description of the module in a program that Go has built
// (cmd/go/internal/modload, infoStart). To search for it costs 3 ms for each plugin, once;
// debug/buildinfo, with the formats of all systems, is 600 kB in every program.
const infoStart = "\x30\x77\xaf\x0c\x92\x74\x08\x02\x41\xe1\xc1\x07\xe6\xd6\x18\xe6"

// ask reads the version from the build information in the executable. If that
// names a reference plugin without a released version, ask runs the plugin, which prints
// its version.
//
//	path	github.com/containernetworking/plugins/plugins/main/bridge
//	mod	github.com/containernetworking/plugins	v1.9.1	h1:…
func ask(ctx context.Context, root invoke.Root, typ, path string) bool {
	var program []byte
	err := root.Do(func() (err error) {
		program, err = os.ReadFile(path)
		return err
	})
	_, info, found := bytes.Cut(program, []byte(infoStart+"path\t"+module+"/plugins/"))
	lines := strings.SplitN(string(info[:min(len(info), 1024)]), "\n", 4)
	if err != nil || !found || len(lines) < 3 || !strings.HasSuffix(lines[0], "/"+typ) {
		return false
	}
	main := strings.Split(lines[1], "\t")
	if len(main) > 2 && main[0] == "mod" && main[1] == module && !strings.HasPrefix(lines[2], "=>") && isRelease(main[2]) {
		return true
	}
	// Without a command a plugin prints:
	//
	//	CNI portmap plugin v1.9.1
	//	CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0
	const enough = time.Second
	ctx, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	out, err := invoke.Run(ctx, invoke.Request{Path: path, Root: root}, invoke.Limits{})
	first, _, _ := strings.Cut(string(out.Stderr), "\n")
	said, ok := strings.CutPrefix(first, "CNI "+typ+" plugin ")
	return err == nil && ok && isRelease(said)
}

// isRelease reports whether a version is a released one, with or without a distribution's
// suffix.
func isRelease(version string) bool {
	version, metadata, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	var major, minor, patch int
	n, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	return n == 3 && err == nil && version == fmt.Sprintf("%d.%d.%d", major, minor, patch) && !strings.Contains(metadata, "dirty")
}
