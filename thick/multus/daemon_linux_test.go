package multus

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
)

// daemon is Multus' daemon, a process of its own.
type daemon struct {
	dir     string // has bin, net.d, cni and log
	program string
	process *exec.Cmd
}

// startDaemon starts Multus' daemon of the pinned version. It returns when the daemon
// serves, and the test ends it. primary is the network that every pod gets: the name of a
// definition in the cluster, or empty for a file with a network of one scripted plugin.
// plugins are the programs by their types, beside the scripted one.
func startDaemon(t *testing.T, c *cluster, primary string, plugins map[string]string) *daemon {
	t.Helper()
	d := &daemon{dir: t.TempDir(), program: os.Getenv(daemonVar)}
	for _, dir := range []string{"bin", "net.d", "cni"} {
		expect.NoError(t, os.Mkdir(d.path(dir), 0o700))
	}
	expect.NoError(t, os.Symlink(refplugins.Scripted(), d.path("bin", "scripted")))
	for name, target := range plugins {
		expect.NoError(t, os.Symlink(target, d.path("bin", name)))
	}
	file := d.path("net.d", "10-primary.conflist")
	d.write(t, file, primaryNetwork)
	d.write(t, d.path("daemon.json"), object{
		"cniVersion": "1.1.0", "binDir": d.path("bin"), "cniDir": d.path("cni"), "confDir": d.path("net.d"),
		"cniConfigDir": d.path("net.d"), "multusAutoconfigDir": d.path("net.d"), "multusConfigFile": "auto",
		// It overrides the one in the requests of testdata.
		"clusterNetwork": cmp.Or(primary, file),
		"socketDir":      runDir, "daemonSocketDir": runDir, "logLevel": "debug", "logToStderr": true,
	})
	log := expect.Value(os.Create(d.path("log")))(t)
	defer log.Close()
	d.process = exec.Command(d.program, "-config", d.path("daemon.json"))
	d.process.Env = append(c.env(t), "PATH="+os.Getenv("PATH"), "HOME="+d.dir)
	d.process.Stdout, d.process.Stderr = log, log
	// It ends with the thread that starts it, even if the tests are killed.
	d.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := d.process.Start()
		started <- err
		if err == nil {
			ended <- d.process.Wait()
		}
	}()
	expect.NoError(t, expect.Await(t, "the start of Multus' daemon", started))
	t.Cleanup(func() {
		if err := d.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
		expect.NoError(t, expect.Await(t, "the end of Multus' daemon", ended))
		if t.Failed() {
			t.Logf("log of Multus' daemon:\n%s", expect.Value(os.ReadFile(d.path("log")))(t))
		}
	})
	// It writes the configuration of its shim last, and not in one step.
	expect.Eventually(t, "Multus' daemon", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("Multus' daemon ended: %v:\n%s", err, expect.Value(os.ReadFile(d.path("log")))(t))
		default:
		}
		config, err := os.ReadFile(d.path("net.d", "00-multus.conf"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return json.Valid(config)
	})
	return d
}

func (d *daemon) path(elements ...string) string {
	return filepath.Join(d.dir, filepath.Join(elements...))
}

func (d *daemon) write(t *testing.T, path string, o object) {
	t.Helper()
	expect.NoError(t, os.WriteFile(path, expect.Value(json.Marshal(o))(t), 0o600))
}

// shimConfig returns the configuration that the daemon wrote for its shim.
func (d *daemon) shimConfig(t *testing.T) []byte {
	t.Helper()
	return expect.Value(os.ReadFile(d.path("net.d", "00-multus.conf")))(t)
}

// primaryNetwork is a network of one scripted plugin. The plugin follows daemon.script,
// because Multus passes on only the standard fields of a primary network's plugins, but
// for ADD.
var primaryNetwork = object{"cniVersion": "1.1.0", "name": "primary", "plugins": []object{{"type": "scripted"}}}

// script has the scripted plugin act from now on.
func (d *daemon) script(t *testing.T, verbs map[string]scripted.Action) {
	t.Helper()
	expect.NoError(t, scripted.Script{Verbs: verbs, Log: d.path("calls")}.Save(d.path("bin", "scripted"+scripted.Beside)))
}

// calls returns the verbs of the scripted plugin's calls.
func (d *daemon) calls(t *testing.T) (verbs []string) {
	t.Helper()
	for _, call := range expect.Value(scripted.Calls(d.path("calls")))(t) {
		verbs = append(verbs, call.Verb)
	}
	return verbs
}
