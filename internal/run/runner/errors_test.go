package runner

import (
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
)

// failedCall is the failure of an executable with exit code 1.
func failedCall(stdout, stderr string) Failure {
	return *failure(chain.Call{Verb: "ADD", Plugin: "x"}, Executable,
		invoke.Output{Stdout: []byte(stdout), Stderr: []byte(stderr)}, &invoke.ExitError{Path: "/bin/x", Code: 1})
}

func TestPluginsErrorIsRead(t *testing.T) {
	got := failedCall(`{"cniVersion": "1.0.0", "code": 11, "msg": "no more", "details": "10.0.0.0/8"}`, "log\n")
	want := Failure{Verb: "ADD", Plugin: "x", Kind: Executable, Code: 11, Msg: "no more", Details: "10.0.0.0/8", Stderr: "log\n"}
	var said *types.Error
	if !errors.As(got.Err, &said) || *said != (types.Error{Code: 11, Msg: "no more", Details: "10.0.0.0/8"}) {
		t.Errorf("the cause is %#v", got.Err)
	}
	if got.Err = nil; got != want {
		t.Errorf("got %#v, want %#v", got, want)
	}
}

// TestMisleadingOutputOfAFailedPlugin: output beside an exit code of 1 counts
// as an error only if it is one, and is never lost.
func TestMisleadingOutputOfAFailedPlugin(t *testing.T) {
	const exit = "exit status 1"
	long := strings.Repeat("y", 600)
	for stdout, want := range map[string][]string{
		"":                          {"ended without an error message", exit},
		"{}":                        {"what it printed is no error", exit, `"{}"`},
		"null":                      {"what it printed is no error", exit, `"null"`},
		`{"cniVersion": "1.0.0"}`:   {"what it printed is no error", exit, "cniVersion"},
		`{"ips": [], "dns": {}}`:    {"what it printed is no error", exit, "ips"},
		`{"code": 7, "msg": "half`:  {"what it printed is no error", exit, "half", "unexpected end of JSON input"},
		"<html>502</html>":          {"what it printed is no error", exit, "<html>502</html>", "invalid character"},
		"panic: oh\n\ngoroutine 1":  {"what it printed is no error", exit, `panic: oh\n\ngoroutine 1`},
		`{"code": "7", "msg": "x"}`: {"what it printed is no error", exit, "cannot unmarshal string"},
		`[1]`:                       {"what it printed is no error", exit, "[1]"},
		`text {"code": 7}`:          {"what it printed is no error", exit, "text"},
		long:                        {"what it printed is no error", strings.Repeat("y", 512) + `"… (600 bytes)`},
	} {
		f := failedCall(stdout, "last words")
		if f.Code != 0 || f.Msg != "" || f.Details != "" || f.Stderr != "last words" {
			t.Errorf("%.40q: read as code %d, %q", stdout, f.Code, f.Msg)
		}
		for _, w := range want {
			if !strings.Contains(f.Err.Error(), w) {
				t.Errorf("%.40q: %v lacks %q", stdout, f.Err, w)
			}
		}
		var ended *invoke.ExitError
		if !errors.As(f.Err, &ended) || ended.Code != 1 {
			t.Errorf("%.40q: the exit is not behind %v", stdout, f.Err)
		}
	}
}

func TestAnErrorOfADelegateHasAText(t *testing.T) {
	err := delegateError(chain.Call{Plugin: "x"}, invoke.Output{Stdout: []byte(`{"code": 7}`)}, &invoke.ExitError{Path: "/bin/x", Code: 1})
	if err == nil || err.Error() != NoMessage {
		t.Errorf("got %v, want %q", err, NoMessage)
	}
}
