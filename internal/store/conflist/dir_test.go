//go:build unix

package conflist_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

func list(name string) string {
	return `{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "x"}]}`
}

func single(name string) string {
	return `{"cniVersion": "1.0.0", "name": "` + name + `", "type": "x"}`
}

// directory makes a directory with these files.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		write(t, dir, name, content)
	}
	return dir
}

func TestFilesAreThoseOfTheExtensionsInNameOrder(t *testing.T) {
	dir := directory(t, map[string]string{
		"20.conf": "", "10.conflist": "", "15.json": "", ".5.conflist": "", "1.conflist.tmp": "", "README": "",
		"2.CONF": "", "100.conf": "", "a.conf/x.conf": "", "sub/3.conf": "", "conf": "", ".conf": "",
	})
	expect.NoError(t, os.Symlink("gone", filepath.Join(dir, "30.conf")))
	expect.NoError(t, syscall.Mkfifo(filepath.Join(dir, "40.conf"), 0o644))
	got := expect.Value(conflist.Files(dir))(t)
	var want []string
	for _, name := range []string{"10.conflist", "100.conf", "15.json", "20.conf", "30.conf", "40.conf"} {
		want = append(want, filepath.Join(dir, name))
	}
	expect.Same(t, "files", got, want)
}

func TestFilesOfADirectoryThatIsNotThere(t *testing.T) {
	files, err := conflist.Files(filepath.Join(t.TempDir(), "gone"))
	expect.That(t, files == nil && err == nil, "got %q, %v; want nothing: hosts make the directory later", files, err)
	files, err = conflist.Files(write(t, t.TempDir(), "file", ""))
	expect.That(t, files == nil && errors.Is(err, conflist.ErrRead), "got %q, %v; want ErrRead for a file in its place", files, err)
}

// TestDuty_R9_OneBrokenFileNeverTakesTheOthersDown, whatever its defect and
// place.
func TestDuty_R9_OneBrokenFileNeverTakesTheOthersDown(t *testing.T) {
	dir := directory(t, map[string]string{
		"05-empty.conflist":   "",
		"10-a.conflist":       list("a"),
		"15-half.conflist":    list("half")[:30],
		"20-b.conf":           single("b"),
		"25-list.conf":        list("in-a-single-file"),
		"30-name.json":        single("-"),
		"35-again.conf":       single("a"),
		"40-unnamed.conf":     single(""),
		"45-path.conflist":    `{"cniVersion": "1.0.0", "name": "p", "plugins": [{"type": "a/b"}]}`,
		"50-c.json":           single("c"),
		"55-version.conflist": `{"cniVersion": "9.0.0", "name": "v", "plugins": [{"type": "x"}]}`,
	})
	expect.NoError(t, syscall.Mkfifo(filepath.Join(dir, "01-fifo.conf"), 0o644))
	expect.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "02-device.conf")))
	expect.NoError(t, os.Symlink("gone", filepath.Join(dir, "99-dangling.conf")))
	found, skipped, err := conflist.Reader{}.Dir(dir, conflist.Selection{Must: func(string) bool { return false }})
	expect.NoError(t, err)
	wantFound := [][2]string{{"10-a.conflist", "a"}, {"20-b.conf", "b"}, {"35-again.conf", "a"}, {"50-c.json", "c"}}
	var gotFound [][2]string
	for _, f := range found {
		gotFound = append(gotFound, [2]string{filepath.Base(f.Path), f.List.Name})
	}
	expect.Same(t, "found", gotFound, wantFound)
	wantSkipped := [][2]string{
		{"01-fifo.conf", "cannot be read: not a regular file but p---------"},
		{"02-device.conf", "cannot be read: not a regular file but Dc---------"},
		{"05-empty.conflist", "error parsing configuration list: unexpected end of JSON input at line 1, column 1"},
		{"15-half.conflist", "error parsing configuration list: unexpected end of JSON input at line 1, column 30"},
		{"25-list.conf", "error parsing configuration: missing 'type'"},
		{"30-name.json", "invalid characters found in network name; -"},
		{"40-unnamed.conf", `the network has no name: set "name"`},
		{"45-path.conflist", `plugin 0: type "a/b" is not a file name`},
		{"55-version.conflist", "error parsing configuration: no version of 9.0.0 is known here (0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0)"},
		{"99-dangling.conf", "cannot be read: stat " + filepath.Join(dir, "99-dangling.conf") + ": no such file or directory"},
	}
	var gotSkipped [][2]string
	for _, s := range skipped {
		gotSkipped = append(gotSkipped, [2]string{filepath.Base(s.Path), s.Err.Error()})
	}
	expect.Same(t, "skipped", gotSkipped, wantSkipped)
}

// TestDirStopsAtMax: it does not read later files.
func TestDirStopsAtMax(t *testing.T) {
	dir := directory(t, map[string]string{
		"10-bad.conf": "{", "20-a.conf": single("a"), "30-b.conf": single("b"), "40-bad.conf": "{", "50-c.conf": single("c"),
	})
	for limit, want := range map[int]struct{ found, skipped int }{1: {1, 1}, 2: {2, 1}, 3: {3, 2}, 4: {3, 2}, 0: {3, 2}, -1: {3, 2}} {
		found, skipped, err := conflist.Reader{}.Dir(dir, conflist.Selection{Max: limit, Must: func(string) bool { return false }})
		expect.That(t, err == nil && len(found) == want.found && len(skipped) == want.skipped,
			"max %d: %d found, %d skipped, %v; want %+v", limit, len(found), len(skipped), err, want)
	}
}

// TestDirFailsOnAFileThatCannotBeDoneWithout: an invalid one, and one whose
// network has lost its name.
func TestDirFailsOnAFileThatCannotBeDoneWithout(t *testing.T) {
	for _, content := range []string{"{", single("")} {
		dir := directory(t, map[string]string{"10-a.conf": single("a"), "20-b.conf": content, "30-c.conf": single("c")})
		must20 := func(path string) bool { return filepath.Base(path) == "20-b.conf" }
		found, skipped, err := conflist.Reader{}.Dir(dir, conflist.Selection{Must: must20})
		var fe *conflist.FileError
		expect.That(t, found == nil && skipped == nil && errors.As(err, &fe) && fe.Path == filepath.Join(dir, "20-b.conf"),
			"%s: got %v, %v, %v; want an error about the file", content, found, skipped, err)
	}
}

func TestDirWithoutAnyConfiguration(t *testing.T) {
	selection := conflist.Selection{Must: func(string) bool { return false }}
	for name, dir := range map[string]string{
		"gone":  filepath.Join(t.TempDir(), "gone"),
		"empty": t.TempDir(),
	} {
		_, _, err := conflist.Reader{}.Dir(dir, selection)
		expect.That(t, errors.Is(err, conflist.ErrNone) && err.Error() == "no network config found in "+dir, "%s: error %v", name, err)
	}
	dir := directory(t, map[string]string{"10.conf": "{", "20.conflist": "["})
	_, skipped, err := conflist.Reader{}.Dir(dir, selection)
	expect.That(t, errors.Is(err, conflist.ErrNone) && len(skipped) == 2, "all bad: error %v, %d skipped", err, len(skipped))
	for _, file := range []string{"10.conf", "20.conflist"} {
		expect.That(t, strings.Contains(err.Error(), filepath.Join(dir, file)+": "), "all bad: %v does not name the mistake in %s", err, file)
	}
}
