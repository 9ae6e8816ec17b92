package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// hostRoot is where the daemon has the host's root. It is on a file system of the tests alone,
// whose mounts reach nobody else, and in a directory that no test deletes.
const hostRoot = "/run/embedcnid-host"

// share has mounts below the test's directories reach a process with mounts of its own, and
// back.
func (s *site) share() {
	s.t.Helper()
	shared := filepath.Dir(s.Dir) // has the containers' namespaces too
	expect.NoError(s.t, unix.Mount(shared, shared, "", unix.MS_BIND|unix.MS_REC, ""), unix.Mount("", shared, "", unix.MS_SHARED, ""))
	s.t.Cleanup(func() { expect.NoError(s.t, unix.Unmount(shared, unix.MNT_DETACH)) })
}

// startInPod starts a daemon with mounts of its own, as the DaemonSet has it: the host's root,
// with the mounts that come, is at hostRoot.
func (s *site) startInPod() *process {
	s.t.Helper()
	cmd := s.command()
	script := `mount --rbind / "$1" && mount --make-rslave "$1" && shift && exec "$@"`
	cmd.Args = append([]string{"unshare", "--mount", "--propagation=unchanged", "sh", "-euc", script, "sh", hostRoot, expect.Value(os.Executable())(s.t)}, cmd.Args[1:]...)
	cmd.Path = tool(s.t, "unshare")
	return s.startAs(cmd)
}

// TestADaemonInAPod, with the host's root elsewhere: an installed plugin sees the host's, a
// namespace that is made later is found, and the pins of namespaces are on the host, where they
// survive the daemon.
func TestADaemonInAPod(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	expect.NoError(t, os.MkdirAll(hostRoot, 0o700))
	seen := s.path("seen")
	plugin := "#!/bin/sh\n{ echo begin; ls " + hostRoot + "; echo end; } >>" + seen + "\n[ \"$CNI_COMMAND\" != ADD ] || echo '{\"cniVersion\": \"1.0.0\"}'\n"
	expect.NoError(t, os.WriteFile(filepath.Join(s.PluginDir, "vendor"), []byte(plugin), 0o755))
	s.WriteConf("30-vendor.conflist", `{"cniVersion": "1.0.0", "name": "vendor", "plugins": [{"type": "vendor"}]}`)
	s.config["pluginRoot"], s.config["insecureFiles"] = hostRoot, []string{s.ConfDir}
	expect.NoError(t, os.Chmod(s.ConfDir, 0o777))
	s.write()
	s.share()
	p := s.startInPod()
	mounts := string(expect.Value(os.ReadFile("/proc/self/mountinfo"))(t))
	expect.Must(t, !strings.Contains(mounts, hostRoot), "the daemon's mounts reach the tests:\n%s", mounts)
	c := s.container("web", "vendor")
	expect.Value(s.add(ctx, c))(t)
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo", "eth0"})
	expect.Same(t, "the host's root in the plugin's", string(expect.Value(os.ReadFile(seen))(t)), "begin\nend\n") // there it is empty
	pins := func() int {
		mounts := string(expect.Value(os.ReadFile("/proc/self/mountinfo"))(t))
		return strings.Count(mounts, fmt.Sprintf(" %s/embedcni/attachments/netns/", s.StateDir))
	}
	expect.Same(t, "pins on the host", pins(), 1)
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.Same(t, "pins without the daemon", pins(), 1)
	p = s.startInPod()
	expect.Contains(t, "log", p.log.String(), `"adopted":1`)
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c), s.del(ctx, c))
	expect.Same(t, "pins after DEL", pins(), 0)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
