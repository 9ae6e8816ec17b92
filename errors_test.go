package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
)

func TestErrorText(t *testing.T) {
	where := Error{Op: "ADD", Network: "podnet", Plugin: "bridge", ContainerID: "c1", IfName: "eth0"}
	with := func(change func(e *Error)) *Error {
		e := where
		change(&e)
		return &e
	}
	const head = `add network "podnet" of container c1, interface eth0: plugin type="bridge" failed (add): `
	tests := map[string]struct {
		err  *Error
		want string
	}{
		"the plugin's own words": {
			with(func(e *Error) { e.Code, e.Msg = 100, "no more addresses" }),
			head + "no more addresses (code 100)",
		},
		"with details": {
			with(func(e *Error) { e.Code, e.Msg, e.Details = 7, "bad config", "bridge name is empty" }),
			head + "bad config; bridge name is empty (code 7)",
		},
		"details alone": {with(func(e *Error) { e.Details, e.Err = "d", errors.New("cause") }), head + "cause"},
		"code alone":    {with(func(e *Error) { e.Code = 5 }), head + "no error message (code 5)"},
		"code of a plugin without words": {
			with(func(e *Error) { e.Code, e.Err = 5, &types.Error{Code: 5} }), head + "no error message (code 5)",
		},
		"details of a plugin without words": {
			with(func(e *Error) { e.Code, e.Details, e.Err = 5, "d", &types.Error{Code: 5, Details: "d"} }), head + "d (code 5)",
		},
		"words that want to go on": {
			with(func(e *Error) { e.Code, e.Msg, e.Details = 5, "run iptables: ", "d" }), head + "run iptables; d (code 5)",
		},
		"a cause that wants to go on": {with(func(e *Error) { e.Err = errors.New("exit status 1: \n") }), head + "exit status 1"},
		"a cause without words":       {with(func(e *Error) { e.Err = errors.New("") }), head + "no error message"},
		"cause":                       {with(func(e *Error) { e.Err = context.DeadlineExceeded }), head + "context deadline exceeded"},
		"nothing":                     {with(func(*Error) {}), head + "no error message"},
		"DEL": {
			with(func(e *Error) { e.Op, e.Msg = "DEL", "boom" }),
			`del network "podnet" of container c1, interface eth0: plugin type="bridge" failed (delete): boom`,
		},
		"STATUS": {&Error{Op: "STATUS", Network: "podnet", Plugin: "bridge", Code: 50, Msg: "no capacity"}, `status network "podnet": plugin type="bridge" failed (status): no capacity (code 50)`},
		"not a plugin's": {
			with(func(e *Error) { e.Plugin, e.Err = "", errors.New("cache is full") }),
			`add network "podnet" of container c1, interface eth0: cache is full`,
		},
		"try again later": {
			with(func(e *Error) { e.Code, e.Msg = types.ErrTryAgainLater, "busy" }),
			head + "busy (code 11); the plugin asks to be tried again later",
		},
		"not installed": {
			with(func(e *Error) { e.Err = engine.WithSentinel(fmt.Errorf("here: %w", invoke.ErrNotFound)) }),
			head + "here: plugin not found; install it there, or name its directory with WithPluginDir",
		},
		"stderr": {with(func(e *Error) { e.Msg, e.Stderr = "boom", "\none\ntwo\n\n" }), head + "boom; stderr: one | two"},
		"stderr of three lines": {
			with(func(e *Error) { e.Msg, e.Stderr = "boom", "1\n2\n3" }), head + "boom; stderr: 1 | 2 | 3",
		},
		"stderr of more": {
			with(func(e *Error) { e.Msg, e.Stderr = "boom", "1\n2\n3\n4\n5\n" }), head + "boom; stderr: (2 lines omitted) 3 | 4 | 5",
		},
		"blank stderr": {with(func(e *Error) { e.Msg, e.Stderr = "boom", " \n\n" }), head + "boom"},
	}
	for name, test := range tests {
		expect.Same(t, name, test.err.Error(), test.want)
	}
}

// TestNoTextHasAnEmptyMiddle: messages from others may be empty or partial.
func TestNoTextHasAnEmptyMiddle(t *testing.T) {
	const mend = "; fix the cause and call Remove again, or call CleanUp to abandon it"
	for want, err := range map[string]error{
		"container c1 could not be removed: no error message" + mend:        &LeftoverError{ContainerID: "c1", Err: errors.New("")},
		"container c1 could not be removed: iptables: left are a; b" + mend: &LeftoverError{ContainerID: "c1", Err: errors.New("iptables: "), Left: []string{"a", "b"}},
		"container c1 could not be removed: left are a" + mend:              &LeftoverError{ContainerID: "c1", Left: []string{"a"}},
	} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "::") || strings.Contains(err.Error(), ": :") {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestErrorFormats(t *testing.T) {
	e := &Error{Op: "ADD", Network: "n", Plugin: "x", ContainerID: "c", IfName: "eth0", Msg: "boom", Stderr: "1\n2\n3\n4\n5\n"}
	const short = `add network "n" of container c, interface eth0: plugin type="x" failed (add): boom`
	const text = short + "; stderr: (2 lines omitted) 3 | 4 | 5"
	quiet := &Error{Op: "ADD", Network: "n", Err: errors.New("why")}
	left := &LeftoverError{ContainerID: "c", Left: []string{"a", "b"}, Err: engine.Join(e, quiet)}
	const whole = short + "\nstderr of x:\n1\n2\n3\n4\n5\n"
	const mend = "fix the cause and call Remove again, or call CleanUp to abandon it"
	notRemoved := `container c could not be removed: ` + text + `; add network "n": why: left are a; b; ` + mend
	tests := []struct {
		format string
		arg    error
		want   string
	}{
		{"%v", e, text}, {"%s", e, text}, {"%q", e, fmt.Sprintf("%q", text)}, {"%#v", e, text},
		{"%+v", e, whole},
		{"%v", left, notRemoved}, {"%v", engine.Tag(left, ErrBusy), notRemoved},
		{"%+v", left, "container c could not be removed: " + whole + "\nadd network \"n\": why\nleft: a\nleft: b\n" + mend},
		{"%+v", engine.Tag(left.Err, ErrBusy), whole + "\nadd network \"n\": why"},
		{"%v", (&Report{Failed: map[string]error{"c": left, "d": ErrBusy}}).Err(), notRemoved + "; container d: " + ErrBusy.Error()},
		{"%+v", quiet, `add network "n": why`}, {"%.3s", quiet, "add"}, {"%25s|", quiet, `     add network "n": why|`},
	}
	for _, test := range tests {
		expect.Same(t, test.format, fmt.Sprintf(test.format, test.arg), test.want)
	}
}

// TestSentinelsOfInnerPackages: this package exports the sentinels of inner
// packages under its own names, and their texts are unchanged.
func TestSentinelsOfInnerPackages(t *testing.T) {
	for inner, want := range map[error]error{
		invoke.ErrNotFound: ErrPluginNotFound, invoke.ErrOutputTooLarge: ErrPluginOutput,
		plainfile.ErrInsecure: ErrInsecureFile, chain.ErrInvalidResult: ErrInvalidResult, chain.ErrNotAdded: ErrNotAttached,
	} {
		err := fmt.Errorf("there: %w", inner)
		got := engine.WithSentinel(err)
		if !errors.Is(got, want) || !errors.Is(got, inner) || got.Error() != err.Error() {
			t.Errorf("%v: %v, want %v behind it", inner, got, want)
		}
	}
	plain := errors.New("plain")
	if got := engine.WithSentinel(plain); got != plain {
		t.Errorf("%v became %v", plain, got)
	}
}

// TestKindsOfConfigErrors checks which of go-cni's sentinels each configuration
// error wraps, also through Load.
func TestKindsOfConfigErrors(t *testing.T) {
	file := func(err error) error { return &conflist.FileError{Path: "/f", Err: err} }
	all := []error{ErrCNINotInitialized, ErrInvalidConfig, ErrRead, ErrLoad, ErrInsecureFile}
	tests := map[string]struct {
		err  error
		want []error
	}{
		"parse":         {file(errors.New("bad")), []error{ErrInvalidConfig}},
		"read":          {file(conflist.ErrRead), []error{ErrRead}},
		"none":          {conflist.ErrNone, []error{ErrCNINotInitialized}},
		"none is valid": {errors.Join(conflist.ErrNone, file(errors.New("bad"))), []error{ErrCNINotInitialized, ErrInvalidConfig}},
		"insecure":      {file(plainfile.ErrInsecure), []error{ErrInvalidConfig, ErrInsecureFile}},
	}
	for name, test := range tests {
		check := func(err error, want []error) {
			t.Helper()
			var got []error
			for _, sentinel := range all {
				if errors.Is(err, sentinel) {
					got = append(got, sentinel)
				}
			}
			if len(got) != len(want) || fmt.Sprint(got) != fmt.Sprint(sortedLike(all, want)) {
				t.Errorf("%s: %v is %v, want %v", name, err, got, want)
			}
		}
		check(configError(test.err), test.want)
		check(loadError(configError(test.err)), append(test.want, ErrLoad))
	}
}

// sortedLike sorts errors into the order of all.
func sortedLike(all, some []error) (sorted []error) {
	for _, a := range all {
		for _, s := range some {
			if a == s {
				sorted = append(sorted, a)
			}
		}
	}
	return sorted
}

func TestIsFunctions(t *testing.T) {
	is := map[error]func(error) bool{
		ErrCNINotInitialized: IsCNINotInitialized, ErrInvalidConfig: IsInvalidConfig, ErrNotFound: IsNotFound,
		ErrRead: IsReadFailure, ErrInvalidResult: IsInvalidResult,
	}
	for sentinel := range is {
		for other, f := range is {
			if got := f(fmt.Errorf("x: %w", sentinel)); got != (sentinel == other) {
				t.Errorf("%v of %v is %v", other, sentinel, got)
			}
		}
	}
}

func TestAsCNIErrorHasTheCodeThatFits(t *testing.T) {
	coded := &Error{Op: "ADD", Network: "net", Plugin: "p", Code: 11, Msg: "no more addresses"}
	taken := &PortError{Protocol: "tcp", HostPort: 8080, ContainerID: "c2", Err: ErrPortInUse}
	absent := &PortError{Protocol: "tcp", HostIP: netip.MustParseAddr("192.0.2.9"), HostPort: 8080, Err: ErrNotHostAddress}
	tests := map[string]struct {
		err       error
		code      uint
		msg, more string
	}{
		"a port":             {fmt.Errorf("set up container %q: %w", "c1", taken), 100, "", ""},
		"an address":         {absent, 101, "", ""},
		"a port and another": {engine.Join(absent, taken), 100, "", ""},
		"a plugin's port":    {&Error{Op: "ADD", Code: 999, Msg: "port 8080 is taken", Err: ErrPortInUse}, 999, "port 8080 is taken", `add network "": port 8080 is taken (code 999)`},
		"plugin's":           {coded, 11, "no more addresses", coded.Error()},
		"wrapped":            {fmt.Errorf("set up: %w", coded), 11, "no more addresses", "set up: " + coded.Error()},
		"without a code":     {&Error{Op: "ADD", Network: "net", Err: fmt.Errorf("x: %w", ErrPluginNotFound)}, 50, "", ""},
		"its own object":     {fmt.Errorf("a: %w", types.NewError(7, "bad", "")), 7, "bad", "a: bad"},
		"not attached":       {fmt.Errorf("c1 is %w", ErrNotAttached), 3, "c1 is not attached", ""},
		"argument":           {ErrInvalidArgument, 4, ErrInvalidArgument.Error(), ""},
		"namespace":          {ErrInvalidNetNS, 4, ErrInvalidNetNS.Error(), ""},
		"file":               {ErrRead, 5, ErrRead.Error(), ""},
		"result":             {ErrInvalidResult, 6, ErrInvalidResult.Error(), ""},
		"configuration":      {fmt.Errorf("%w: %w", ErrInvalidConfig, ErrCNINotInitialized), 7, "invalid cni config: cni plugin not initialized", ""},
		"busy":               {ErrBusy, 11, ErrBusy.Error(), ""},
		"deadline":           {context.DeadlineExceeded, 11, context.DeadlineExceeded.Error(), ""},
		"nothing is loaded":  {ErrCNINotInitialized, 50, ErrCNINotInitialized.Error(), ""},
		"anything else":      {errors.New("disk on fire"), 999, "disk on fire", ""},
		"a plugin's missing": {ErrPluginNotFound, 50, ErrPluginNotFound.Error(), ""},
	}
	for name, tt := range tests {
		got := engine.AsCNIError(tt.err)
		if tt.msg == "" {
			tt.msg = tt.err.Error()
		}
		if got.Code != tt.code || got.Msg != tt.msg || got.Details != tt.more {
			t.Errorf("%s: got code %d, %q, %q; want %d, %q, %q", name, got.Code, got.Msg, got.Details, tt.code, tt.msg, tt.more)
		}
	}
	expect.Same(t, "of nil", engine.AsCNIError(nil), nil)
}
