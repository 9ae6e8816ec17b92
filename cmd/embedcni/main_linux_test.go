package main

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// programVariable makes the test binary the program.
const programVariable = "EMBEDCNI_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
	}
	os.Exit(cnitest.Main(m))
}

// program returns a process of the program on a host.
func program(t *testing.T, host *cnitest.TestHost, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.Command("/proc/self/exe", append(args, "--state-dir", host.StateDir, "--host-netns", host.NetNS)...)
	cmd.Env = append(os.Environ(), programVariable+"=1", "NETCONFPATH="+host.ConfDir, "CNI_PATH="+host.PluginDir)
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// TestExitCodesOfTheProcess is about what a shell gets.
func TestExitCodesOfTheProcess(t *testing.T) {
	host := cnitest.Host(t)
	for _, test := range []struct {
		line, stdout, stderr string // how they begin
		code                 int
	}{
		{"version", "embedcni ", "", 0},
		{"list", "CONTAINER  NETWORK  ", "Nothing is on record in ", 0},
		{"show web", "", "embedcni show: container web: not attached\n", 1},
		{"shwo web", "", `embedcni: unknown command "shwo" for "embedcni"; do you mean show?` + "\n", 2},
		{"health web", "CONTAINER  STATE  ", "", 3},
	} {
		cmd, stdout, stderr := program(t, host, strings.Fields(test.line)...)
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != test.code || !begins(stdout, test.stdout) || !begins(stderr, test.stderr) {
			t.Errorf("%s: exit code %d\nstdout: %s\nstderr: %s", test.line, code, stdout, stderr)
		}
	}
}

// begins reports whether a stream begins so; an empty one has nothing at all.
func begins(stream *bytes.Buffer, with string) bool {
	return strings.HasPrefix(stream.String(), with) && (with != "" || stream.Len() == 0)
}

// TestInterruptUndoes interrupts an add while a plugin hangs: the plugin is ended, and nothing
// is attached.
func TestInterruptUndoes(t *testing.T) {
	host := cnitest.Host(t)
	host.WriteConf("10-vpc.conflist", `{"cniVersion": "1.1.0", "name": "vpc", "plugins": [{"type": "cloud"}]}`)
	host.Plugin("cloud", cnitest.Script{"ADD": {Hang: true}})
	cmd, stdout, stderr := program(t, host, "add", "vpc", cnitest.Container(t), "--id", "web")
	expect.NoError(t, cmd.Start())
	expect.Eventually(t, "the ADD of the plugin", func() bool { return len(host.Calls()) > 0 })
	expect.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "/cloud killed: ") {
		t.Errorf("%v\nstdout: %s\nstderr: %s", err, stdout, stderr)
	}
	var verbs []string
	for _, c := range host.Calls() {
		verbs = append(verbs, c.Verb)
	}
	if want := []string{"ADD", "DEL"}; !slices.Equal(verbs, want) {
		t.Errorf("the plugin was asked for %v, not %v", verbs, want)
	}
	expect.Empty(t, "attachments", expect.Value(host.Runtime().Attachments())(t))
}
