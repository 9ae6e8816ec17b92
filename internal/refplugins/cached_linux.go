package refplugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// complete is written last. It exists if and only if every plugin does.
const complete = ".complete"

var errNoGo = errors.New("there is no go command in PATH: " +
	"install Go, or set CNI_PATH to a directory that holds the reference plugins")

// cached returns the directory in the user's cache and fills it if necessary.
func cached(ctx context.Context, progress io.Writer) (string, error) {
	dir, version, err := required(ctx)
	if errors.Is(err, errNoGo) || errors.Is(err, ErrNotRequired) {
		return withoutGo(err)
	}
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory, set HOME or XDG_CACHE_HOME: %w", err)
	}
	filled := filepath.Join(cache, "embedcni", "plugins", key(version))
	if isComplete(filled) {
		return filled, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return withoutGo(fmt.Errorf("%w: %w", errNoGo, err))
	}
	if err := os.MkdirAll(filled, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filled)
	if err != nil {
		return "", err
	}
	defer unlock()
	if isComplete(filled) { // by the previous holder of the lock
		return filled, nil
	}
	return filled, build(ctx, dir, filled, version, progress)
}

// withoutGo returns the plugins' directory if none can be built.
func withoutGo(err error) (string, error) {
	if dir, ok := fromCNIPath(os.Getenv("CNI_PATH")); ok {
		return dir, nil
	}
	return "", err
}

// key returns the directory's name for a version. It includes Go's version, so
// that benchmarks before and after an upgrade use separate builds.
func key(version string) string {
	name := strings.Join([]string{version, runtime.GOOS, runtime.GOARCH, runtime.Version()}, "-")
	// A development version of Go has spaces and colons in its name.
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" :/", r) {
			return '_'
		}
		return r
	}, name)
}

// isComplete does not rely on the marker alone, because cleaners of caches
// remove single files that have not been used for long.
func isComplete(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, complete))
	return err == nil && len(missingIn(dir)) == 0
}

// required returns the folder of the module that requires the plugins, and the
// required version. The folder is empty for the module of the working directory.
func required(ctx context.Context) (dir, version string, err error) {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", checkout)
	if errors.Is(err, errNoGo) { // names the remedy
		return "", "", err
	}
	if err == nil {
		dir = filepath.Join(strings.TrimSuffix(root, "\n"), mains)
		if _, err := os.Stat(dir); err != nil { // the published module omits it
			dir = ""
		}
	}
	out, lerr := goCommand(ctx, dir, "list", "-m", "-f",
		"{{.Version}}{{with .Replace}} replaced {{.Path}} {{.Version}}{{end}}", module)
	if lerr != nil && dir == "" {
		return "", "", fmt.Errorf("%w (go list: %w); or run from a checkout of the module", ErrNotRequired, lerr)
	}
	if lerr != nil {
		return "", "", lerr
	}
	version, err = parseVersion(out)
	return dir, version, err
}

// parseVersion parses the output of go list:
//
//	v1.9.1
//	v1.9.1 replaced example.org/fork v1.9.2
//	v1.9.1 replaced ../plugins
func parseVersion(out string) (string, error) {
	fields := strings.Fields(out)
	switch {
	case len(fields) == 1:
		return fields[0], nil
	case len(fields) == 4 && fields[1] == "replaced":
		return fields[2] + "@" + fields[3], nil
	case len(fields) == 3 && fields[1] == "replaced":
		// Its content may change at any time, so it cannot be cached.
		return "", fmt.Errorf("%s is replaced by the directory %s: build it there, and set %s to the result",
			module, fields[2], dirVariable)
	}
	return "", fmt.Errorf("go list printed %q for the version of %s", out, module)
}

// lock makes the caller the only one that fills dir, until it calls unlock or
// ends.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// Closing unlocks. The empty file has nothing to lose.
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		// Polled, because a blocking flock cannot be cancelled.
		select {
		case <-ctx.Done():
			err := fmt.Errorf("wait for another process that builds them: %w", context.Cause(ctx))
			return nil, errors.Join(err, f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// build fills dir with the plugins that the module in from requires.
func build(ctx context.Context, from, dir, version string, progress io.Writer) (err error) {
	say := func(format string, args ...any) {
		// A failed write of progress does not stop the build.
		_, _ = fmt.Fprintf(progress, format, args...)
	}
	say("building the reference CNI plugins %s (about a minute, once) …\n", version)
	begin := time.Now()

	// Within dir, because rename does not cross file systems.
	tmp, err := os.MkdirTemp(dir, ".build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	args := append([]string{"build", "-trimpath", "-o", tmp + string(filepath.Separator)}, packages()...)
	if _, err := goCommand(ctx, from, args...); err != nil {
		return err
	}
	for _, name := range Names() {
		if err := os.Rename(filepath.Join(tmp, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, complete), []byte(version+"\n"), 0o644); err != nil {
		return err
	}
	say("built the reference CNI plugins in %.0f s: %s\n", time.Since(begin).Seconds(), dir)
	return nil
}

// goCommand runs the go command in dir, or in the working directory if dir is
// empty, and returns its output.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	path, err := exec.LookPath("go")
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoGo, err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(),
		"CGO_ENABLED=0",
		"GOOS="+runtime.GOOS,
		"GOARCH="+runtime.GOARCH,
		"GOFLAGS="+plainFlags(os.Getenv("GOFLAGS")),
	)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, lastLines(stderr.String(), 10))
	}
	return stdout.String(), nil
}

// plainFlags returns GOFLAGS without the flags that change the built code: the
// race detector needs cgo, and nobody reads a plugin's coverage.
func plainFlags(flags string) string {
	var kept []string
	for _, flag := range strings.Fields(flags) {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		switch name {
		case "race", "msan", "asan", "cover", "covermode", "coverpkg":
		default:
			kept = append(kept, flag)
		}
	}
	return strings.Join(kept, " ")
}

// lastLines returns the end of text on one line. Tools report the cause there.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if omitted := len(lines) - n; omitted > 0 {
		lines = append([]string{fmt.Sprintf("(%d lines omitted)", omitted)}, lines[omitted:]...)
	}
	return strings.Join(lines, "; ")
}
