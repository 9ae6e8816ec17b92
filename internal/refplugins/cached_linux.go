package refplugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/store/lock"
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
	if err := os.MkdirAll(filled, 0o755); err != nil {
		return "", err
	}
	held, err := lock.Open(filled+".lock").Lock(ctx, "build")
	if err != nil {
		return "", fmt.Errorf("wait for another process that builds them: %w", err)
	}
	if !isComplete(filled) { // else by the previous holder of the lock
		err = build(ctx, dir, filled, version, progress)
	}
	return filled, errors.Join(err, held.Release())
}

// withoutGo returns the first directory of CNI_PATH that has all plugins, or err.
func withoutGo(err error) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		if dir != "" && len(missingIn(dir)) == 0 {
			return dir, nil
		}
	}
	return "", err
}

// key returns the directory's name for a version. It includes Go's version, so
// that benchmarks before and after an upgrade use separate builds.
func key(version string) string {
	name := strings.Join([]string{version, runtime.GOOS, runtime.GOARCH, runtime.Version()}, "-")
	// A development version of Go has spaces and colons in its name.
	return strings.NewReplacer(" ", "_", ":", "_", "/", "_").Replace(name)
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
		"{{with .Replace}}{{.Path}}@{{.Version}}{{else}}{{.Version}}{{end}}", module)
	if lerr != nil && dir == "" {
		return "", "", fmt.Errorf("%w (go list: %w); or run from a checkout of the module", ErrNotRequired, lerr)
	}
	if lerr != nil {
		return "", "", lerr
	}
	version, err = parseVersion(out)
	return dir, version, err
}

// parseVersion parses the output of go list, whose last line is for a module that is
// replaced by a directory:
//
//	v1.9.1
//	example.org/fork@v1.9.2
//	../plugins@
func parseVersion(out string) (string, error) {
	version := strings.TrimSpace(out)
	if dir, replaced := strings.CutSuffix(version, "@"); replaced {
		// Its content may change at any time, so it cannot be cached.
		return "", fmt.Errorf("%s is replaced by the directory %s: build it there, and set %s to the result",
			module, dir, dirVariable)
	}
	if version == "" {
		return "", fmt.Errorf("go list printed no version of %s", module)
	}
	return version, nil
}

// build fills dir with the plugins that the module in from requires.
func build(ctx context.Context, from, dir, version string, progress io.Writer) error {
	// A failed write of progress does not stop the build.
	_, _ = fmt.Fprintf(progress, "building the reference CNI plugins %s (about a minute, once) …\n", version)
	begin := time.Now()
	marker := filepath.Join(dir, complete) // while files are written, none
	if err := os.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := append([]string{"build", "-trimpath", "-o", dir + string(filepath.Separator)}, packages()...)
	if _, err := goCommand(ctx, from, args...); err != nil {
		return err
	}
	if err := os.WriteFile(marker, []byte(version+"\n"), 0o644); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(progress, "built the reference CNI plugins in %.0f s: %s\n", time.Since(begin).Seconds(), dir)
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
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
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
