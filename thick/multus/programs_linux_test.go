package multus

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// The module of Multus, and the variables that tell the sandbox where the programs are.
const (
	module    = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"
	shimVar   = "EMBEDCNI_TEST_MULTUS_SHIM"
	daemonVar = "EMBEDCNI_TEST_MULTUS_DAEMON"
	oursVar   = "EMBEDCNI_TEST_SHIM"               // this library's shim
	parserVar = "EMBEDCNI_TEST_MULTUS_ANNOTATIONS" // Multus' parser of annotations
)

// programs builds the programs, unless the variables name others, and returns the
// variables. The go command keeps them in its cache.
func programs() ([]string, error) {
	var env []string
	for variable, name := range map[string]string{shimVar: "multus-shim", daemonVar: "multus-daemon", oursVar: "ours", parserVar: "annotations"} {
		if os.Getenv(variable) != "" {
			continue
		}
		var stderr strings.Builder
		cmd := exec.Command("go", "tool", "-n", name)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", name, err, stderr.String())
		}
		path := strings.TrimSpace(string(out))
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("go tool -n %s printed %q", name, path)
		}
		env = append(env, variable+"="+path)
	}
	return env, nil
}

// version returns the version of Multus that a program was built from.
func version(t *testing.T, program string) string {
	t.Helper()
	info := expect.Value(buildinfo.ReadFile(program))(t)
	for _, dep := range append(info.Deps, &info.Main) {
		if dep.Path == module {
			return dep.Version
		}
	}
	t.Fatalf("%s is not of %s", program, module)
	return ""
}

// call is one execution of a CNI plugin.
type call struct {
	verb, ifName, args, netns string
	config                    []byte
	env                       []string // further variables
}

// environ returns the process's whole environment.
func (c call) environ() []string {
	env := []string{"CNI_COMMAND=" + c.verb, "CNI_PATH=/opt/cni/bin"}
	if c.verb != "GC" && c.verb != "STATUS" {
		env = append(env, "CNI_CONTAINERID="+containerID, "CNI_IFNAME="+c.ifName, "CNI_ARGS="+c.args)
		if c.netns != "" {
			env = append(env, "CNI_NETNS="+c.netns)
		}
	}
	return append(env, c.env...)
}

// command returns the execution of a plugin.
func (c call) command(plugin string) *exec.Cmd {
	cmd := exec.Command(plugin)
	cmd.Env = c.environ()
	cmd.Stdin = bytes.NewReader(c.config)
	return cmd
}

// run executes a plugin. The error is the CNI error object that it printed.
func (c call) run(t *testing.T, plugin string) (stdout []byte, stderr string, err error) {
	t.Helper()
	cmd := c.command(plugin)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	failed := cmd.Run()
	if failed == nil {
		return out.Bytes(), log.String(), nil
	}
	if exit := (*exec.ExitError)(nil); !errors.As(failed, &exit) {
		t.Fatal(failed)
	}
	var said struct {
		CNIVersion string
		types.Error
	}
	if err := strictJSON(out.Bytes(), &said); err != nil {
		t.Fatalf("%s of %s: %v, printed %q (%v), stderr %q", c.verb, plugin, failed, &out, err, &log)
	}
	return nil, log.String(), &said.Error
}
