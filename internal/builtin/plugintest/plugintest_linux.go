// Package plugintest runs in-process plugins and the reference plugins side by
// side, for tests: each in its own host namespace, with the same calls.
package plugintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Call is the input of a plugin.
type Call struct {
	Type, ID, IfName, NetNS, Args string
	// Config is the request configuration without a previous result. Prev is
	// the previous result, as printed.
	Config string
	Prev   []byte
}

// Side is a way to run plugins: ours or theirs.
type Side struct {
	Name string
	Host *netns.Handle
	run  func(ctx context.Context, verb string, c Call, env []string, stdin []byte) ([]byte, error)
}

// Ours runs plugins in process.
func Ours(host *netns.Handle, lookup func(typ string) plugin.Plugin) Side {
	s := Side{Name: "ours", Host: host}
	s.run = func(ctx context.Context, verb string, c Call, env []string, stdin []byte) ([]byte, error) {
		p := lookup(c.Type)
		if p == nil {
			return nil, fmt.Errorf("no plugin of type %q", c.Type)
		}
		call := chain.Call{Verb: verb, Plugin: c.Type, Env: env, Stdin: stdin}
		return runner.InProcess(ctx, p, call, host, func(ctx context.Context, verb, typ string, config json.RawMessage) (*types100.Result, error) {
			c := c
			c.Type = typ
			out, err := s.run(ctx, verb, c, env, config)
			if err != nil || verb != "ADD" {
				return nil, err
			}
			return Result(out)
		})
	}
	return s
}

// Theirs runs the executables of the reference plugins.
func Theirs(t testing.TB, host *netns.Handle) Side {
	t.Helper()
	dir := expect.Value(refplugins.Dir(context.Background(), io.Discard))(t)
	s := Side{Name: "theirs", Host: host}
	s.run = func(ctx context.Context, verb string, c Call, env []string, stdin []byte) ([]byte, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(dir, c.Type))
		cmd.Env = append(os.Environ(), append(env, "CNI_PATH="+dir)...)
		cmd.Stdin = bytes.NewReader(stdin)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := host.Do(cmd.Run); err != nil {
			e := &types.Error{}
			if json.Unmarshal(stdout.Bytes(), e) == nil && e.Msg != "" {
				return nil, e
			}
			return nil, fmt.Errorf("%w: %s%s", err, stdout.String(), stderr.String())
		}
		return stdout.Bytes(), nil
	}
	return s
}

// Run runs a verb and returns the plugin's output.
func (s Side) Run(ctx context.Context, verb string, c Call) ([]byte, error) {
	env := []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + c.ID, "CNI_IFNAME=" + c.IfName,
		"CNI_NETNS=" + c.NetNS, "CNI_ARGS=" + c.Args, "CNI_PATH=/nowhere",
	}
	stdin := []byte(c.Config)
	if c.Prev != nil {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(stdin, &fields); err != nil {
			return nil, err
		}
		fields["prevResult"] = c.Prev
		var err error
		if stdin, err = json.Marshal(fields); err != nil {
			return nil, err
		}
	}
	return s.run(ctx, verb, c, env, stdin)
}

// Must runs a verb that must succeed.
func (s Side) Must(t testing.TB, verb string, c Call) []byte {
	t.Helper()
	out, err := s.Run(context.Background(), verb, c)
	if err != nil {
		t.Fatalf("%s: %s of %s: %v", s.Name, verb, c.Type, err)
	}
	return out
}

// MustFail runs a verb that must fail, and returns the error.
func (s Side) MustFail(t testing.TB, verb string, c Call) error {
	t.Helper()
	out, err := s.Run(context.Background(), verb, c)
	if err == nil {
		t.Fatalf("%s: %s of %s succeeded: %s", s.Name, verb, c.Type, out)
	}
	return err
}

// Result parses the output of ADD.
func Result(out []byte) (*types100.Result, error) {
	r, err := types100.NewResult(out)
	if err != nil {
		return nil, err
	}
	return types100.GetResult(r)
}

// NetNS makes a namespace that lives until the test ends, and returns the path
// of its pin.
func NetNS(t testing.TB) (*netns.Handle, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	ns := nettest.At(t, path)
	nettest.SetUp(t, ns, "lo")
	return ns, path
}

// Audit lists the contents of a namespace and of state directories. It omits
// the process, because concurrent tests change it.
func Audit(t testing.TB, ns *netns.Handle, dirs ...string) audit.Lines {
	t.Helper()
	return snapshot(t, ns, audit.Options{StateDirs: dirs}).Without(audit.Shared)
}

func snapshot(t testing.TB, ns *netns.Handle, o audit.Options) (lines audit.Lines) {
	t.Helper()
	o.WithoutProcess = true
	expect.NoError(t, ns.Do(func() (err error) {
		lines, err = audit.Snapshot(context.Background(), o)
		return err
	}))
	return lines
}

// NoLeak compares two audits.
func NoLeak(t testing.TB, before, after audit.Lines) {
	t.Helper()
	added, removed := audit.Diff(before, after)
	expect.Unchanged(t, "state", added, removed)
}

// Code returns the code of a plugin's error.
func Code(err error) uint {
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
