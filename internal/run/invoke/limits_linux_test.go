package invoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

func TestFault_F17_TooMuchOnStdout(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		lim          Limits
		want         int
	}{
		{"256 MB", fmt.Sprintf("fork; out %d; hang", 256*mib), Limits{}, 4 * mib},
		{"one byte too many", "out 1001; hang", Limits{Stdout: 1000}, 1000},
		{"and then success", "out 1001", Limits{Stdout: 1000}, 1000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			noLeak(t)
			req := scripted(t, tt.script)
			var out Output
			var err error
			tt.lim.KillWait = patient().KillWait
			bytes := allocated(func() { out, err = Run(context.Background(), req, tt.lim) })
			t.Logf("%d KiB allocated", bytes/1024)
			expect.That(t, bytes <= 64*mib, "%d MiB allocated", bytes/mib)
			expect.That(t, errors.Is(err, ErrOutputTooLarge) && len(out.Stdout) == tt.want,
				"got %d bytes, %v; want the first %d and ErrOutputTooLarge", len(out.Stdout), err, tt.want)
			noSurvivors(t, req)
		})
	}
}

func TestFault_F17_ADaemonThatPrintsTooMuch(t *testing.T) {
	noLeak(t)
	req := scripted(t, "")
	// The plugin is a shell that succeeds at once, and its child continues to
	// print.
	script := filepath.Join(t.TempDir(), "plugin")
	expect.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nyes &\nexit 0\n"), 0o700))
	req.Path = script
	req.Env = append(req.Env, "PATH=/usr/bin:/bin")
	_, err := Run(context.Background(), req, Limits{Stdout: 100_000, KillWait: expect.Patience})
	expect.Is(t, err, ErrOutputTooLarge)
	noSurvivors(t, req)
}

func TestFault_F17_ExactlyTheLimit(t *testing.T) {
	noLeak(t)
	out, err := Run(context.Background(), scripted(t, "out 1000"), Limits{Stdout: 1000})
	want := (Output{Stdout: numbered(t, 0, 1000)})
	expect.That(t, err == nil && reflect.DeepEqual(out, want), "got %d bytes, %v", len(out.Stdout), err)
}

func TestFault_F17_StderrWithoutEnd(t *testing.T) {
	noLeak(t)
	const n = 64 * mib
	req := scripted(t, fmt.Sprintf("err %d; say attached", n))
	var out Output
	var err error
	bytes := allocated(func() { out, err = Run(context.Background(), req, Limits{}) })
	t.Logf("%d KiB allocated", bytes/1024)
	expect.That(t, bytes <= mib, "%d KiB allocated", bytes/1024)
	want := Output{Stdout: []byte("attached\n"), Stderr: numbered(t, n-64<<10, n)}
	expect.That(t, err == nil && reflect.DeepEqual(out, want), "got %d bytes, %v", len(out.Stderr), err)
}

// busyPlugin is an executable that is open for writing until the returned file
// is closed.
func busyPlugin(t *testing.T) (path string, writer *os.File) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "plugin")
	f := expect.Value(os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o700))(t)
	expect.Value(f.WriteString("#!/bin/sh\necho attached\n"))(t)
	t.Cleanup(func() { f.Close() })
	return path, f
}

func TestFault_F18_BusyExecutable(t *testing.T) {
	noLeak(t)
	path, writer := busyPlugin(t)
	tries := 0
	out, err := Run(context.Background(), Request{Path: path, In: func(start func() error) error {
		if tries++; tries == 4 {
			writer.Close()
		}
		return start()
	}}, Limits{BusyWait: 20 * time.Second})
	expect.That(t, err == nil && string(out.Stdout) == "attached\n", "got %q, %v", out.Stdout, err)
	expect.That(t, tries >= 4, "started at try %d: it was never busy", tries)
}

func TestFault_F18_BusyForTooLong(t *testing.T) {
	noLeak(t)
	path, _ := busyPlugin(t)
	start := time.Now()
	_, err := Run(context.Background(), Request{Path: path}, Limits{BusyWait: 30 * time.Millisecond})
	took := time.Since(start)
	expect.That(t, took <= patient().KillWait/2, "took %v", took)
	want := "start " + path + ": text file busy"
	expect.That(t, errors.Is(err, syscall.ETXTBSY) && err.Error() == want, "got  %v\nwant %s", err, want)
}

func TestFault_F18_BusyUntilTheDeadline(t *testing.T) {
	noLeak(t)
	path, _ := busyPlugin(t)
	var err error
	expect.Limited(200*time.Millisecond, func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		start := time.Now()
		err = expect.Err(Run(ctx, Request{Path: path}, Limits{BusyWait: time.Hour}))
		took := time.Since(start)
		expect.That(t, took <= limit+patient().KillWait/2, "took %v", took)
		return !errors.Is(err, syscall.ETXTBSY) // it was not tried
	})
	expect.That(t, errors.Is(err, context.DeadlineExceeded) && errors.Is(err, syscall.ETXTBSY),
		"got %v, want the deadline and the step that used it up", err)
}

// TestARootSharesFiles: parts of a path that are nowhere do not matter, and a link may lead
// elsewhere inside.
func TestARootSharesFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root changes its root directory")
	}
	root := t.TempDir()
	shared := t.TempDir()
	inside := filepath.Join(root, shared)
	expect.NoError(t, os.MkdirAll(filepath.Dir(inside), 0o755), os.Link(write(t, shared, "file"), filepath.Join(root, "file")))
	for path, same := range map[string]bool{
		shared:                                false, // there is none inside
		filepath.Join(shared, "networks/net"): false, // nor above it
		"/no/such/directory":                  false, // the roots are two directories
		"/file":                               false, // there is none outside
	} {
		err := Root(root).Shares(path)
		expect.That(t, (err == nil) == same, "%s: %v", path, err)
	}
	for path, same := range map[string]bool{shared: true, filepath.Join(shared, "networks/net"): true, "/no/such/directory": true} {
		err := Root("/").Shares(path)
		expect.That(t, (err == nil) == same, "%s in the root itself: %v", path, err)
	}
	expect.Fails(t, "a root that is missing shares files", Root(filepath.Join(root, "none")).Shares(shared))
}

func write(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	expect.NoError(t, os.WriteFile(path, nil, 0o644))
	return path
}

// TestAMissingRootIsNoMissingPlugin, so that no other plugin runs in its place.
func TestAMissingRootIsNoMissingPlugin(t *testing.T) {
	none := Root(filepath.Join(t.TempDir(), "none"))
	_, err := none.Find("bridge", []string{"/bin"}, nil)
	expect.That(t, err != nil && !errors.Is(err, ErrNotFound), "Find: %v", err)
	err = none.Check("bridge", "/bin/bridge", nil)
	expect.That(t, err != nil && !errors.Is(err, ErrNotFound), "Check: %v", err)
	_, err = none.Find("bridge", []string{"/bin"}, []string{"/"})
	expect.That(t, err != nil && !errors.Is(err, ErrNotFound), "with insecure files: %v", err)
	expect.Is(t, expect.Err(Run(t.Context(), Request{Path: "/bin/true", Root: none}, Limits{})), ErrNotStarted)
}
