package refplugins

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// withoutEnv makes Dir use only the cache.
func withoutEnv(t *testing.T) {
	t.Helper()
	t.Setenv(dirVariable, "")
	t.Setenv("CNI_PATH", "")
}

// fakePlugins makes files in place of plugins in a new directory.
func fakePlugins(t *testing.T, names []string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	return dir
}

func TestDirBuildsOnceForAll(t *testing.T) {
	withoutEnv(t)
	// Go's own cache stays, otherwise the test would compile for a minute, and two of the
	// plugins are linked.
	goCache(t)
	all := plugins
	plugins = "main/bridge main/loopback"
	defer func() { plugins = all }()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())

	var (
		wg       sync.WaitGroup
		progress [3]bytes.Buffer
		dirs     [3]string
		errs     [3]error
	)
	for i := range dirs {
		wg.Go(func() {
			dirs[i], errs[i] = Dir(t.Context(), &progress[i])
		})
	}
	wg.Wait()
	expect.NoError(t, errors.Join(errs[:]...))
	expect.That(t, dirs[0] == dirs[1] && dirs[1] == dirs[2], "directories %q", dirs)
	said := progress[0].String() + progress[1].String() + progress[2].String()
	want := regexp.MustCompile(`^building the reference CNI plugins v\S+ \(about a minute, once\) …\nbuilt .* in \d+ s: \S+\n$`)
	expect.That(t, want.MatchString(said), "progress:\n%s", said)
	checkPlugins(t, dirs[0])

	var silent bytes.Buffer
	again, err := Dir(t.Context(), &silent)
	expect.That(t, err == nil && again == dirs[0] && silent.Len() == 0, "the second time: %q, %v, said %q", again, err, silent.String())

	// A plugin that a cleaner of caches removed is built again.
	expect.NoError(t, os.Remove(filepath.Join(dirs[0], "bridge")))
	expect.Value(Dir(t.Context(), io.Discard))(t)
	checkPlugins(t, dirs[0])
}

func goCache(t *testing.T) {
	t.Helper()
	t.Setenv("GOCACHE", strings.TrimSpace(string(expect.Value(exec.Command("go", "env", "GOCACHE").Output())(t))))
}

// checkPlugins fails unless dir contains exactly the plugins. It runs one of
// them.
func checkPlugins(t *testing.T, dir string) {
	t.Helper()
	entries := expect.Value(os.ReadDir(dir))(t)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	expect.Same(t, "files", got, append([]string{complete}, Names()...))
	cmd := exec.Command(filepath.Join(dir, "bridge"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	out, err := cmd.Output()
	expect.That(t, err == nil && strings.Contains(string(out), "supportedVersions"), "bridge said %q, %v", out, err)
}

func TestDirTakesTheVariable(t *testing.T) {
	dir := fakePlugins(t, Names())
	t.Setenv(dirVariable, dir)
	t.Setenv("PATH", "")
	expect.Same(t, "environment", expect.Value(Env(t.Context(), io.Discard))(t), []string{"EMBEDCNI_TEST_PLUGINS=" + dir})
}

func TestDirRefusesAnIncompleteVariable(t *testing.T) {
	dir := fakePlugins(t, Names()[2:])
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "bridge"), nil, 0o644))
	t.Setenv(dirVariable, dir)
	_, err := Dir(t.Context(), io.Discard)
	want := "find the reference CNI plugins: EMBEDCNI_TEST_PLUGINS=" + dir +
		" has no bandwidth, bridge: unset it to have them built"
	expect.That(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
}

func TestDirWithoutGo(t *testing.T) {
	withoutEnv(t)
	t.Setenv("PATH", "")
	_, err := Dir(t.Context(), io.Discard)
	if !errors.Is(err, errNoGo) || !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("got %v, want %v", err, errNoGo)
	} else if strings.Contains(err.Error(), "checkout") {
		t.Errorf("a checkout does not help: %v", err)
	}
	dir := fakePlugins(t, Names())
	t.Setenv("CNI_PATH", strings.Join([]string{"", fakePlugins(t, Names()[1:]), dir}, ":"))
	expect.Same(t, "with CNI_PATH", expect.Value(Dir(t.Context(), io.Discard))(t), dir)
}

func TestDirOutsideACheckout(t *testing.T) {
	withoutEnv(t)
	goCache(t)
	t.Chdir(t.TempDir())
	_, err := Dir(t.Context(), io.Discard)
	expect.That(t, errors.Is(err, ErrNotRequired) && strings.HasSuffix(err.Error(), "; or run from a checkout of the module"), "got %v", err)
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]string{
		"v1.9.1\n":                  "v1.9.1",
		"example.org/fork@v1.9.2\n": "example.org/fork@v1.9.2",
		"../plugins@\n":             "",
		"":                          "",
	} {
		got, err := parseVersion(out)
		expect.That(t, got == want && (err == nil) == (want != ""), "%q: got %q, %v, want %q", out, got, err, want)
	}
}

func TestPlainFlags(t *testing.T) {
	const in = "-race -mod=mod --cover -covermode=atomic -tags=raceway"
	expect.Same(t, "plainFlags", plainFlags(in), "-mod=mod -tags=raceway")
}

// TestRequiredByTheCallersModule: a module outside the checkout that lists the plugins
// as tools.
func TestRequiredByTheCallersModule(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum"} {
		data := expect.Value(os.ReadFile(filepath.Join("mains", name)))(t)
		data = bytes.Replace(data, []byte("module "+checkout), []byte("module example.org/importer"), 1)
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	_, want, err := required(t.Context())
	expect.NoError(t, err)
	t.Chdir(dir)
	from, version, err := required(t.Context())
	expect.That(t, from == "" && version == want && err == nil,
		"version %q of folder %q, %v; want %q of the working directory", version, from, err, want)
}
