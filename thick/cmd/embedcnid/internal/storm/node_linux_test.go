package storm

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

const (
	confDir    = disk + "/net.d" // of the daemon
	dataDir    = disk + "/ipam"
	daemonConf = disk + "/embedcnid.yaml"

	pauseImage = "example.org/pause:latest"
	answersAt  = 80 // the port at which a sandbox answers
)

// cgroups begins the names of the cgroups that hold those of sandboxes. A cgroup is the machine's,
// so the rest is the name of this run's directory.
const cgroups = "embedcni-storm-"

func cgroupName() string { return cgroups + filepath.Base(os.Getenv(programsVariable)) }

// containerdConf keeps everything of containerd below disk and /run.
const containerdConf = `version = 2
root = "` + disk + `/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "` + disk + `/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = "` + disk + `/cri.d"
`

// runtimesConflist is what containerd reads.
const runtimesConflist = `{"cniVersion": "1.0.0", "name": "node", "plugins": [
	{"type": "embedcni-shim", "capabilities": {"portMappings": true, "bandwidth": true}}]}`

// node is a host: what runs on it, in a network namespace that lasts until the next boot.
type node struct {
	t        *testing.T
	programs string
	host     string // path of the namespace
	boots    atomic.Int64
	mounts   []string // before anything ran

	containerd *exec.Cmd
	mu         sync.Mutex
	conn       *grpc.ClientConn
}

func newNode(t *testing.T) *node {
	n := &node{t: t, host: "/run/host/net", programs: os.Getenv(programsVariable), mounts: mounts(t)}
	for _, dir := range []string{confDir, dataDir, disk + "/cri.d"} {
		expect.NoError(t, os.MkdirAll(dir, 0o755))
	}
	expect.NoError(t,
		os.WriteFile(disk+"/containerd.toml", fmt.Appendf(nil, containerdConf, filepath.Join(n.programs, "plugins")), 0o644),
		os.WriteFile(disk+"/cri.d/00-node.conflist", []byte(runtimesConflist), 0o644),
		os.MkdirAll(disk+"/plugins", 0o755), os.Symlink(expect.Value(os.Executable())(t), disk+"/plugins/scripted"))
	n.boot()
	n.importPause()
	return n
}

// client returns the client of the containerd that runs.
func (n *node) client() runtimeapi.RuntimeServiceClient {
	n.mu.Lock()
	defer n.mu.Unlock()
	return runtimeapi.NewRuntimeServiceClient(n.conn)
}

// boot starts containerd in a network namespace without anything.
func (n *node) boot() {
	n.t.Helper()
	expect.NoError(n.t, expect.Value(netns.Create(n.host))(n.t).Close())
	expect.NoError(n.t, netns.Do(n.host, loopbackUp))
	log := expect.Value(os.OpenFile(disk+"/containerd.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644))(n.t)
	n.containerd = exec.Command("containerd", "--config", disk+"/containerd.toml")
	n.containerd.Stdout, n.containerd.Stderr = log, log
	expect.NoError(n.t, netns.Do(n.host, n.containerd.Start), log.Close())
	conn, err := grpc.NewClient("unix:///run/containerd/containerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	expect.NoError(n.t, err)
	n.mu.Lock()
	old := n.conn
	n.conn = conn
	n.mu.Unlock()
	if old != nil {
		expect.NoError(n.t, old.Close())
	}
	expect.Eventually(n.t, "containerd", func() bool {
		_, err := n.client().Version(n.t.Context(), &runtimeapi.VersionRequest{})
		return err == nil
	})
}

// importPause gives containerd the image of the sandboxes: busybox, whose web server answers.
func (n *node) importPause() {
	n.t.Helper()
	t := n.t
	layer := archive(t, map[string][]byte{"busybox": expect.Value(os.ReadFile("/bin/busybox"))(t)})
	config := expect.Value(json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/busybox", "httpd", "-f", "-p", fmt.Sprint(answersAt), "-h", "/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	}))(t)
	manifest := expect.Value(json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{pauseImage}, "Layers": []string{"layer.tar"}}}))(t)
	file := disk + "/pause.tar"
	expect.NoError(t, os.WriteFile(file, archive(t, map[string][]byte{"manifest.json": manifest, "config.json": config, "layer.tar": layer}), 0o644))
	out, err := exec.Command("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", file).CombinedOutput()
	expect.Must(t, err == nil, "import of the image: %v\n%s", err, out)
	images := runtimeapi.NewImageServiceClient(n.conn)
	expect.Eventually(t, "the image", func() bool {
		got, err := images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: pauseImage}})
		return err == nil && got.Image != nil
	})
	expect.NoError(t, os.Remove(file))
}

func archive(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		expect.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}))
		_, err := w.Write(data)
		expect.NoError(t, err)
	}
	expect.NoError(t, w.Close())
	return b.Bytes()
}

// halt is a power cut: all processes, mounts, namespaces and cgroups are gone, and what is
// below /run. The next boot has another ID.
func (n *node) halt() {
	n.t.Helper()
	expect.NoError(n.t, n.containerd.Process.Kill(), ignoreExit(n.containerd.Wait()))
	expect.Eventually(n.t, "the end of all processes", func() bool {
		expect.NoError(n.t, killOthers())
		return len(processes(n.t)) == 0
	})
	for _, at := range slices.Backward(mounts(n.t)) {
		if !slices.Contains(n.mounts, at) {
			expect.NoError(n.t, unix.Unmount(at, unix.MNT_DETACH))
		}
	}
	for _, e := range expect.Value(os.ReadDir("/run"))(n.t) {
		expect.NoError(n.t, os.RemoveAll("/run/"+e.Name()))
	}
	n.wantNoCgroups()
	expect.NoError(n.t, newBootID())
}

// killOthers kills all processes but process 1 and this one. Process 1 is this program, so
// that they are those of the test's own namespace.
func killOthers() error {
	first, err := os.Readlink("/proc/1/exe")
	self, serr := os.Readlink("/proc/self/exe")
	if err = errors.Join(err, serr); err != nil || first != self || os.Getenv(testsVariable) == "" {
		return fmt.Errorf("process 1 is %s, not this test: %w", first, err)
	}
	for _, pid := range others() {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// others returns the processes of the namespace but process 1 and this one.
func others() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		var pid int
		if _, err := fmt.Sscanf(name, "/proc/%d", &pid); err == nil && pid != 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes describes those that are no zombies.
func processes(t *testing.T) (all []string) {
	t.Helper()
	for _, pid := range others() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && len(line) > 0 {
			all = append(all, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return all
}

func mounts(t *testing.T) (points []string) {
	t.Helper()
	for line := range strings.Lines(string(expect.Value(os.ReadFile("/proc/self/mountinfo"))(t))) {
		points = append(points, strings.Fields(line)[4])
	}
	return points
}

func newBootID() error { return os.WriteFile(bootIDFile, []byte(rand.Text()+"\n"), 0o444) }

// removeCgroups removes cgroups without processes from all hierarchies, from the bottom up.
func removeCgroups(pattern string) error {
	roots, err := filepath.Glob("/sys/fs/cgroup/" + pattern)
	more, merr := filepath.Glob("/sys/fs/cgroup/*/" + pattern)
	err = errors.Join(err, merr)
	for _, root := range slices.Concat(roots, more) {
		var dirs []string
		err = errors.Join(err, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return err
		}))
		for _, dir := range slices.Backward(dirs) {
			if rerr := unix.Rmdir(dir); !errors.Is(rerr, unix.EBUSY) { // else it is another run's
				err = errors.Join(err, rerr)
			}
		}
	}
	return err
}

// wantNoCgroups removes those of this run, which no process is in.
func (n *node) wantNoCgroups() {
	n.t.Helper()
	expect.Eventually(n.t, "the end of all cgroups", func() bool {
		expect.NoError(n.t, removeCgroups(cgroupName()))
		left, err := filepath.Glob("/sys/fs/cgroup/*/" + cgroupName())
		return err == nil && len(left) == 0
	})
}

func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}
