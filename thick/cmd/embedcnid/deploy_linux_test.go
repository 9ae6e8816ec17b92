package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/daemon"
	"github.com/embedcni/cni/thick/kube/kubelet"
)

const deploy = "../../../deploy"

// manifest reads the document of a kind from a file, without a field that does not exist.
func manifest[T any](t *testing.T, file, kind string) (object T) {
	t.Helper()
	for _, document := range strings.Split(string(expect.Value(os.ReadFile(filepath.Join(deploy, "kubernetes", file)))(t)), "\n---\n") {
		var of struct{ Kind string }
		expect.NoError(t, yaml.Unmarshal([]byte(document), &of))
		if of.Kind == kind {
			expect.NoError(t, yaml.UnmarshalStrict([]byte(document), &object))
			return object
		}
	}
	t.Fatalf("%s has no %s", file, kind)
	return object
}

// podConfig is the configuration of the daemon in a pod.
func podConfig(t *testing.T, c corev1.Container) config.Config {
	t.Helper()
	var keys config.Flags
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	keys.Register(set)
	var args []string
	for _, arg := range c.Args {
		args = append(args, strings.ReplaceAll(arg, "$(NODE_NAME)", "node-1"))
	}
	expect.NoError(t, set.Parse(args))
	return expect.Value(config.Load(filepath.Join(deploy, "kubernetes", "embedcnid.yaml"), &keys))(t)
}

// TestTheDaemonSet fits the daemon: its configuration, its directories, its probes.
func TestTheDaemonSet(t *testing.T) {
	set := manifest[appsv1.DaemonSet](t, "daemonset.yaml", "DaemonSet")
	spec := set.Spec.Template.Spec
	container := spec.Containers[0]
	c := podConfig(t, container)
	expect.NoError(t, daemon.Verify(&c))
	mounts := map[string]corev1.VolumeMount{}
	for _, m := range container.VolumeMounts {
		mounts[m.MountPath] = m
	}
	shared := corev1.MountPropagationBidirectional
	for path, of := range map[string]string{
		"/etc/embedcni": "the file", c.ConfDir: "confDir", filepath.Dir(c.Socket): "socket", c.StateDir: "stateDir", filepath.Dir(c.QueueDir): "queueDir", c.PluginRoot: "pluginRoot",
		filepath.Dir(kubelet.DefaultSocket): "the kubelet's socket", "/run/k8s.cni.cncf.io": "information about devices",
	} {
		expect.That(t, mounts[path].Name != "", "%s: nothing is mounted at %s", of, path)
	}
	expect.Same(t, "propagation of the state directory", *mounts[c.StateDir].MountPropagation, shared)
	for _, path := range []string{"/run/netns", c.PluginRoot} {
		expect.Same(t, "propagation of "+path, *mounts[path].MountPropagation, corev1.MountPropagationHostToContainer)
	}
	for _, p := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		expect.Same(t, "probe", fmt.Sprintf("%s:%d", p.HTTPGet.Host, p.HTTPGet.Port.IntVal), c.HTTP.Address)
	}
	grace := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second
	expect.That(t, grace > c.ShutdownGrace+5*time.Second, "terminationGracePeriodSeconds is %v, shutdownGrace %v", grace, c.ShutdownGrace)
	expect.Same(t, "sees the host", []bool{spec.HostNetwork, spec.HostPID, *container.SecurityContext.Privileged}, []bool{true, true, true})
	binding := manifest[rbacv1.ClusterRoleBinding](t, "rbac.yaml", "ClusterRoleBinding")
	role := manifest[rbacv1.ClusterRole](t, "rbac.yaml", "ClusterRole")
	account := manifest[corev1.ServiceAccount](t, "rbac.yaml", "ServiceAccount")
	expect.Same(t, "service account", []string{spec.ServiceAccountName, binding.Subjects[0].Name, binding.RoleRef.Name}, []string{account.Name, account.Name, role.Name})
	wantVolumes(t, spec)
}

// wantVolumes: each mount has a volume, each volume a mount, and each ConfigMap is generated.
func wantVolumes(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	var kustomization struct {
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		}
	}
	expect.NoError(t, yaml.Unmarshal(expect.Value(os.ReadFile(filepath.Join(deploy, "kubernetes", "kustomization.yaml")))(t), &kustomization))
	var generated, maps, volumes, mounted []string
	for _, m := range kustomization.ConfigMapGenerator {
		generated = append(generated, m.Name)
	}
	for _, v := range spec.Volumes {
		volumes = append(volumes, v.Name)
		if v.ConfigMap != nil {
			maps = append(maps, v.ConfigMap.Name)
		}
	}
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		for _, m := range c.VolumeMounts {
			mounted = append(mounted, m.Name)
		}
	}
	for _, names := range [][]string{generated, maps, volumes, mounted} {
		slices.Sort(names)
	}
	expect.Same(t, "ConfigMaps", maps, generated)
	expect.Same(t, "volumes", volumes, slices.Compact(mounted))
}

// TestTheNetworksOfTheManifest can be used, and the runtime's conflist finds the daemon.
func TestTheNetworksOfTheManifest(t *testing.T) {
	c := config.Default()
	c.ConfDir, c.StateDir, c.QueueDir = expect.Value(filepath.Abs(filepath.Join(deploy, "kubernetes", "networks")))(t), t.TempDir(), t.TempDir()
	c.InsecureFiles = []string{"/"} // whoever has cloned the tree
	expect.Empty(t, "findings", daemon.Check(&c))
	var list struct {
		Plugins []struct {
			Type            string
			DaemonSocketDir string
		}
	}
	expect.NoError(t, json.Unmarshal(expect.Value(os.ReadFile(filepath.Join(deploy, "kubernetes", "00-embedcni.conflist")))(t), &list))
	expect.Same(t, "plugin", fmt.Sprint(list.Plugins), fmt.Sprintf("[{%s %s}]", daemon.ShimType, filepath.Dir(c.Socket)))
}

// TestTheInitContainer installs its files, the second time over the first ones, and leaves an
// installed plugin loopback alone.
func TestTheInitContainer(t *testing.T) {
	install := manifest[appsv1.DaemonSet](t, "daemonset.yaml", "DaemonSet").Spec.Template.Spec.InitContainers[0]
	dir := t.TempDir()
	for _, made := range []string{"host/opt/cni/bin", "host/etc/cni/net.d", "runtime", "usr/local/bin"} {
		expect.NoError(t, os.MkdirAll(filepath.Join(dir, made), 0o755))
	}
	script := below(install.Command[2], dir, "/host/", "/runtime/", "/usr/local/")
	for _, content := range []string{"first", "second, which is longer"} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, "usr/local/bin/embedcni-shim"), []byte(content), 0o644),
			os.WriteFile(filepath.Join(dir, "runtime/00-embedcni.conflist"), []byte(content), 0o600))
		out, err := exec.Command(install.Command[0], install.Command[1], script).CombinedOutput()
		expect.Same(t, "output", string(out), "")
		expect.NoError(t, err)
		got := map[string]string{}
		expect.NoError(t, filepath.WalkDir(filepath.Join(dir, "host"), func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				info := expect.Value(e.Info())(t)
				got[strings.TrimPrefix(path, dir)] = fmt.Sprint(info.Mode(), " ", string(expect.Value(os.ReadFile(path))(t)))
			}
			return err
		}))
		expect.Same(t, "files", got, map[string]string{
			"/host/opt/cni/bin/embedcni-shim": "-rwxr-xr-x " + content, "/host/opt/cni/bin/loopback": "Lrwxrwxrwx " + content,
			"/host/etc/cni/net.d/00-embedcni.conflist": "-rw-r--r-- " + content,
		})
	}
	loopback := filepath.Join(dir, "host/opt/cni/bin/loopback")
	expect.NoError(t, os.Remove(loopback), os.WriteFile(loopback, []byte("another"), 0o755), exec.Command(install.Command[0], install.Command[1], script).Run())
	expect.Same(t, "loopback", string(expect.Value(os.ReadFile(loopback))(t)), "another")
}

// below returns a script whose directories are below another root.
func below(script, root string, dirs ...string) string {
	for _, dir := range dirs {
		script = strings.ReplaceAll(script, " "+dir, " "+root+dir)
	}
	return script
}

// TestTwoInitContainers install different versions at once, as after the forced deletion of a
// pod or beside a second DaemonSet. The shim is whole, and of one of them.
func TestTwoInitContainers(t *testing.T) {
	install := manifest[appsv1.DaemonSet](t, "daemonset.yaml", "DaemonSet").Spec.Template.Spec.InitContainers[0]
	dir, versions := t.TempDir(), []string{"a", "b", "c", "d"}
	var all []*exec.Cmd
	for _, version := range versions {
		root := filepath.Join(dir, version)
		for _, made := range []string{dir + "/host/opt/cni/bin", dir + "/host/etc/cni/net.d", root + "/runtime", root + "/usr/local/bin"} {
			expect.NoError(t, os.MkdirAll(made, 0o755))
		}
		expect.NoError(t, os.WriteFile(root+"/usr/local/bin/embedcni-shim", bytes.Repeat([]byte(version), 1<<20), 0o644),
			os.WriteFile(root+"/runtime/00-embedcni.conflist", []byte(version), 0o600))
		script := below(below(install.Command[2], root, "/runtime/", "/usr/local/"), dir, "/host/")
		all = append(all, exec.Command(install.Command[0], install.Command[1], "for i in 1 2 3 4; do "+script+"\ndone"))
	}
	for _, c := range all {
		c.Stderr = os.Stderr
		expect.NoError(t, c.Start())
	}
	for i, c := range all {
		expect.That(t, c.Wait() == nil, "version %s is not installed", versions[i])
	}
	shim := expect.Value(os.ReadFile(filepath.Join(dir, "host/opt/cni/bin/embedcni-shim")))(t)
	expect.That(t, slices.Contains(versions, string(shim[:1])) && bytes.Equal(shim, bytes.Repeat(shim[:1], 1<<20)), "the shim is mixed")
}

// TestTheImagesBases: the Go is that of the modules, because the image of Go fetches no other,
// and both are of one release of Debian. ".ci/image" builds the image.
func TestTheImagesBases(t *testing.T) {
	text := string(expect.Value(os.ReadFile(filepath.Join(deploy, "Containerfile")))(t))
	bases := regexp.MustCompile(`(?m)^FROM golang:([0-9.]+)-([a-z]+) AS build\n(?s:.*)^FROM debian:([a-z]+)-slim$`).FindStringSubmatch(text)
	expect.Must(t, bases != nil, "other bases:\n%s", text)
	expect.Same(t, "release of Debian", bases[3], bases[2])
	for _, module := range []string{"go.mod", "../../kube/go.mod", "../../metrics/go.mod", "../../../go.mod"} {
		text := string(expect.Value(os.ReadFile(module))(t))
		expect.That(t, strings.Contains(text, "\ngo "+bases[1]+"."), "%s wants another Go than the image has, %s", module, bases[1])
	}
}

// tool returns the path of a program.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	expect.Must(t, err == nil, "%v: make deps installs what the tests need", err)
	return path
}

// TestKustomizeRendersTheManifests: all of them, with the ConfigMaps.
func TestKustomizeRendersTheManifests(t *testing.T) {
	cmd := exec.Command(tool(t, "kubectl"), "kustomize", filepath.Join(deploy, "kubernetes"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	expect.NoError(t, cmd.Run())
	expect.Same(t, "stderr", stderr.String(), "")
	var kinds []string
	for _, document := range strings.Split(stdout.String(), "\n---\n") {
		var of struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		expect.NoError(t, yaml.Unmarshal([]byte(document), &of))
		kinds = append(kinds, strings.TrimSpace(of.Kind+" "+of.Metadata.Name+" "+of.Metadata.Namespace))
	}
	slices.Sort(kinds)
	expect.Same(t, "objects", kinds, []string{
		"ClusterRole embedcnid", "ClusterRoleBinding embedcnid", "ConfigMap embedcni-networks kube-system", "ConfigMap embedcni-runtime kube-system",
		"ConfigMap embedcnid kube-system", "CustomResourceDefinition network-attachment-definitions.k8s.cni.cncf.io", "DaemonSet embedcnid kube-system",
		"ServiceAccount embedcnid kube-system",
	})
}

// unit returns the settings of the unit, and its text.
func unit(t *testing.T) (values map[string]string, text string) {
	t.Helper()
	text = string(expect.Value(os.ReadFile(filepath.Join(deploy, "systemd", "embedcnid.service")))(t))
	values = map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	return values, text
}

// TestTheUnitsCapabilitiesSuffice for a container with a bridge, a forwarded port and a network
// that it names.
func TestTheUnitsCapabilitiesSuffice(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	values, _ := unit(t)
	capabilities := strings.ToLower(strings.ReplaceAll(values["CapabilityBoundingSet"], "CAP_", "+"))
	cmd := s.command()
	cmd.Args = append([]string{"setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all," + strings.ReplaceAll(capabilities, " ", ","),
		expect.Value(os.Executable())(t)}, cmd.Args[1:]...)
	cmd.Path = tool(t, "setpriv")
	p := s.startAs(cmd)
	_, bounding, _ := strings.Cut(string(expect.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid)))(t)), "CapBnd:")
	mask := expect.Value(strconv.ParseUint(strings.Fields(bounding)[0], 16, 64))(t)
	expect.Same(t, "number of the daemon's capabilities", bits.OnesCount64(mask), strings.Count(capabilities, "+"))
	c := s.container("web", "storage")
	c.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}}}
	expect.Value(s.add(ctx, c))(t)
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo", "eth0", "net1"})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c), s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestTheUnit is one for systemd, and gives the daemon its time.
func TestTheUnit(t *testing.T) {
	values, text := unit(t)
	stop := expect.Value(time.ParseDuration(values["TimeoutStopSec"]))(t)
	grace := config.Default().ShutdownGrace
	expect.That(t, stop > grace+5*time.Second, "TimeoutStopSec is %v, shutdownGrace %v", stop, grace)
	analyze := tool(t, "systemd-analyze")
	copied := filepath.Join(t.TempDir(), "embedcnid.service") // it wants the program to be there
	expect.NoError(t, os.WriteFile(copied, []byte(strings.ReplaceAll(text, "/usr/local/bin/embedcnid", "/bin/true")), 0o644))
	out, err := exec.Command(analyze, "verify", "--man=no", copied).CombinedOutput()
	expect.Same(t, "systemd-analyze verify", string(out), "")
	expect.NoError(t, err)
}

// TestTheInstallation does what docs/operating.md says, below another root.
func TestTheInstallation(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"systemctl", "systemd-tmpfiles"} {
		tool(t, name)
	}
	networks := t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(networks, "10-x.conflist"), []byte(`{"cniVersion": "1.1.0", "name": "x", "plugins": [{"type": "ptp"}]}`), 0o644))
	page := string(expect.Value(os.ReadFile("../../../docs/operating.md"))(t))
	for _, step := range []struct {
		shown string   // on the page
		tried []string // a build as the tests' own, so that nothing is compiled twice
	}{
		{"make daemon", []string{"make", "-C", "../../..", "daemon", "DAEMON_BUILD=go build", "DESTDIR=" + root}},
		{"systemd-tmpfiles --create embedcnid.conf", []string{"systemd-tmpfiles", "--create", "--root=" + root, root + "/usr/local/lib/tmpfiles.d/embedcnid.conf"}},
		{"cp my-networks/*.conflist /etc/embedcni/net.d/", []string{"cp", networks + "/10-x.conflist", root + "/etc/embedcni/net.d/"}},
		{"embedcnid --check", []string{root + "/usr/local/bin/embedcnid", "--check", "--config=" + root + "/etc/embedcni/embedcnid.yaml", "--confDir=" + root + "/etc/embedcni/net.d"}},
		{"systemctl enable --now embedcnid", []string{"systemctl", "--quiet", "--root=" + root, "enable", "embedcnid"}},
	} {
		expect.Contains(t, "docs/operating.md", page, "\n"+step.shown)
		out, err := exec.Command(step.tried[0], step.tried[1:]...).CombinedOutput()
		expect.Must(t, err == nil, "%s: %v\n%s", step.shown, err, out)
	}
	c := config.Default()
	for path, mode := range map[string]os.FileMode{
		filepath.Dir(c.Socket): 0o700, c.StateDir: 0o700, c.QueueDir: 0o700, c.ConfDir: 0o755, "/etc/embedcni/embedcnid.yaml": 0o644,
		"/opt/cni/bin/embedcni-shim": 0o755, "/usr/local/bin/embedcnid": 0o755, "/usr/local/lib/systemd/system/embedcnid.service": 0o644,
	} {
		expect.Same(t, path, expect.Value(os.Stat(filepath.Join(root, path)))(t).Mode().Perm(), mode)
	}
	expect.Same(t, "enabled", expect.Exists(t, filepath.Join(root, "/etc/systemd/system/multi-user.target.wants/embedcnid.service")), true)
}
