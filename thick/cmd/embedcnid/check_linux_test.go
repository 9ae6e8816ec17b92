package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestCheck prints each finding, and exits with 1 if there is one.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*site)
		args   []string
		code   int
		want   string // in it, DIR is the host's directory
	}{
		"good":            {code: 0, want: "nothing is wrong\n"},
		"two keys":        {change: func(s *site) { s.config["sokcet"], s.config["gc"] = "/a", 1 }, code: 1, want: "DIR/etc/embedcnid.yaml: gc: want true or false, not 1\nDIR/etc/embedcnid.yaml: sokcet: there is no such key; do you mean socket?\n"},
		"a flag":          {args: []string{"--networks=none"}, code: 1, want: "networks: \"none\" is none of first, all\n"},
		"an unknown type": {args: []string{"--builtinPlugins=brigde"}, code: 1, want: "WithBuiltinPlugins: plugin \"brigde\" is not built in: invalid argument\n"},
		"no directory":    {change: func(s *site) { s.config["stateDir"] = s.path("etc", "embedcnid.yaml") }, code: 1, want: "stateDir: DIR/etc/embedcnid.yaml is no directory\n"},
		"others' directories": {change: func(s *site) {
			s.config["queueDir"] = s.path("dels")
			for _, dir := range []string{s.path("run"), s.path("dels")} {
				expect.NoError(s.t, os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o770))
			}
		}, code: 1, want: "socket: others may write to DIR/run (mode drwxrwx---): run chmod go-w on it\nqueueDir: others may write to DIR/dels (mode drwxrwx---): run chmod go-w on it\n"},
		"a missing plugin": {change: func(s *site) {
			s.WriteConf("30-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "vendor"}]}`)
		}, code: 1, want: "confDir: network \"x\": plugin vendor: failed to find plugin \"vendor\" in path [DIR/bin]\n"},
		"a missing IPAM plugin": {change: func(s *site) {
			s.WriteConf("30-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge", "ipam": {"type": "vendor"}}]}`)
		}, code: 1, want: "confDir: network \"x\": plugin bridge: failed to find plugin \"vendor\" in path [DIR/bin]\n"},
		"others' plugin": {change: func(s *site) {
			s.plugin("vendor", "")
			expect.NoError(s.t, os.Chmod(s.path("bin", "vendor"), 0o777))
		}, code: 1, want: "confDir: network \"vendor\": plugin vendor: plugin \"vendor\": DIR/bin/vendor (mode -rwxrwxrwx, owner 0) is writable by everybody: run chmod o-w on it, or allow insecure files (WithInsecureFiles)\n"},
		"no plugin root": {change: func(s *site) {
			expect.NoError(s.t, os.Remove(s.path("net.d", "20-storage.conflist")))
			s.config["pluginRoot"], s.config["pluginDirs"] = s.path("etc", "embedcnid.yaml"), []string{}
		}, code: 1, want: "confDir: network \"podnet\": plugin bridge: chroot DIR/etc/embedcnid.yaml: not a directory (plugin root DIR/etc/embedcnid.yaml)\n" +
			"confDir: network \"podnet\": plugin portmap: chroot DIR/etc/embedcnid.yaml: not a directory (plugin root DIR/etc/embedcnid.yaml)\n"},
		"the shim": {change: func(s *site) {
			s.WriteConf("30-x.conflist", `{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "embedcni-shim"}]}`)
		}, code: 1, want: "confDir: network \"x\": plugin embedcni-shim would ask this daemon itself; its conflist is for the runtime's directory\n"},
		"a broken conflist": {change: func(s *site) { s.WriteConf("30-x.conflist", `{`) }, code: 1, want: "confDir: DIR/net.d/30-x.conflist: error parsing configuration list: unexpected end of JSON input at line 1, column 1\n"},
		"a ConfigMap":       {change: func(s *site) { expect.NoError(s.t, os.Chmod(s.ConfDir, 0o777)) }, args: []string{"--insecureFiles=/"}, code: 0, want: "nothing is wrong\n"},
		"others' files":     {change: func(s *site) { expect.NoError(s.t, os.Chmod(s.ConfDir, 0o777)) }, code: 1, want: "confDir: cni config load failed: no network config found in DIR/net.d that is valid; DIR/net.d/10-podnet.conflist: DIR/net.d (mode drwxrwxrwx, owner 0) is writable by everybody: run chmod o-w on it, or allow insecure files (WithInsecureFiles); DIR/net.d/20-storage.conflist: DIR/net.d (mode drwxrwxrwx, owner 0) is writable by everybody: run chmod o-w on it, or allow insecure files (WithInsecureFiles): invalid cni config: cni plugin not initialized: failed to load cni config\n"},
		"no cluster":        {args: []string{"--kubernetes.enabled", "--kubernetes.node=n", "--kubernetes.kubeconfig=/none"}, code: 1, want: "kubernetes.kubeconfig: stat /none: no such file or directory\n"},
		"no networks": {change: func(s *site) {
			expect.NoError(s.t, os.RemoveAll(s.ConfDir))
		}, code: 1, want: "confDir: cni config load failed: no network config found in DIR/net.d: cni plugin not initialized: failed to load cni config\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if c.change != nil {
				c.change(s)
				s.write()
			}
			var out, errs bytes.Buffer
			code := run(t.Context(), append([]string{"--config", s.path("etc", "embedcnid.yaml"), "--check"}, c.args...), &out, &errs)
			expect.Same(t, "exit code", code, c.code)
			expect.Same(t, "findings", strings.ReplaceAll(out.String(), s.Dir, "DIR"), c.want)
			expect.Same(t, "stderr", errs.String(), "")
		})
	}
}

func TestTheCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string // the beginnings
	}{
		"help":        {[]string{"--help"}, 0, usage, ""},
		"version":     {[]string{"--version"}, 0, "embedcnid (built from the tree), go1.", ""},
		"an unknown":  {[]string{"--sokcet=/a"}, 2, "", "embedcnid: flag provided but not defined: -sokcet; see --help\n"},
		"a value":     {[]string{"--uid=x"}, 2, "", "embedcnid: invalid value \"x\" for flag -uid: want a number; see --help\n"},
		"an argument": {[]string{"serve"}, 2, "", "embedcnid: unexpected argument \"serve\"; see --help\n"},
		"no file":     {[]string{"--config=/none"}, 1, "", "embedcnid: open /none: no such file or directory\n"},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), c.args, &out, &errs)
		expect.Same(t, name+": exit code", code, c.code)
		expect.That(t, strings.HasPrefix(out.String(), c.stdout) && (c.stdout != "" || out.Len() == 0), "%s: stdout %s", name, out.String())
		expect.Same(t, name+": stderr", errs.String(), c.stderr)
	}
}
