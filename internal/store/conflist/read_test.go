//go:build unix

package conflist_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/conflist"
)

const good = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "n": "<&>"}]}`

// write makes a file, and the directories above it, in this test's own
// directory.
func write(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	expect.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// TestFileThatIsNoFile: reading a configuration never blocks and its memory is
// bounded, whatever the path leads to.
func TestFileThatIsNoFile(t *testing.T) {
	for name, test := range map[string]struct {
		make func(path string) error
		err  string
	}{
		"does not exist": {func(string) error { return nil }, "cannot be read: stat "},
		"directory":      {func(p string) error { return os.Mkdir(p, 0o755) }, "cannot be read: not a regular file but d"},
		"dangling link":  {func(p string) error { return os.Symlink(p+".gone", p) }, "cannot be read: stat "},
		"link to itself": {func(p string) error { return os.Symlink(p, p) }, "cannot be read: stat "},
		"device":         {func(p string) error { return os.Symlink("/dev/zero", p) }, "cannot be read: not a regular file but Dc"},
		"FIFO":           {func(p string) error { return syscall.Mkfifo(p, 0o644) }, "cannot be read: not a regular file but p"},
		"socket":         {listen, "cannot be read: not a regular file but S"},
		"below a file":   {func(p string) error { return os.WriteFile(filepath.Dir(p)+"/x", nil, 0o644) }, "cannot be read: stat "},
		"huge":           {func(p string) error { return sparse(p, 4<<20+1) }, "cannot be read: larger than 4194304 bytes"},
		"huge and more":  {func(p string) error { return sparse(p, 1<<40) }, "cannot be read: larger than 4194304 bytes"},
		"empty":          {func(p string) error { return sparse(p, 0) }, "error parsing configuration list: unexpected end of JSON input"},
		"zeros":          {func(p string) error { return sparse(p, 4<<20) }, "error parsing configuration list: invalid character '\\x00'"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "10-net.conflist")
			expect.NoError(t, test.make(path))
			list, err := conflist.Reader{}.File(path)
			expect.That(t, err != nil && strings.HasPrefix(err.Error(), path+": "+test.err),
				"got %+v and error %v, want one that begins with %q", list, err, path+": "+test.err)
			want := strings.HasPrefix(test.err, "cannot be read")
			expect.That(t, errors.Is(err, conflist.ErrRead) == want, "ErrRead is %v behind %v", !want, err)
		})
	}
}

// listen leaves a socket at path. It uses a short name first, because a
// socket's path is limited to 108 bytes.
func listen(path string) error {
	short, err := os.MkdirTemp("/tmp", "s")
	if err != nil {
		return err
	}
	defer os.RemoveAll(short)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short + "/s", Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return errors.Join(os.Rename(short+"/s", path), l.Close())
}

func sparse(path string, size int64) error {
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

func TestLargestFileIsRead(t *testing.T) {
	path := write(t, t.TempDir(), "10-net.conflist", good+strings.Repeat(" ", 4<<20-len(good)))
	expect.Succeeds(t, "File", expect.Err((conflist.Reader{}).File(path)))
}

// TestFault_F24_WorldWritableConfiguration: the author of a configuration can
// run programs as the runtime. A file that anybody can write or replace is
// therefore refused unless the caller allows it.
func TestFault_F24_WorldWritableConfiguration(t *testing.T) {
	for name, test := range map[string]struct {
		file, dir os.FileMode
		link      bool // the file is a link to one outside a directory of mode 0755
		refused   bool
	}{
		"ordinary":                          {file: 0o644, dir: 0o755},
		"writable by the group":             {file: 0o664, dir: 0o775},
		"file writable by all":              {file: 0o646, dir: 0o755, refused: true},
		"file of mode 0666":                 {file: 0o666, dir: 0o755, refused: true},
		"directory writable by all":         {file: 0o644, dir: 0o777, refused: true},
		"sticky directory writable by all":  {file: 0o644, dir: os.ModeSticky | 0o777},
		"writable file in sticky directory": {file: 0o666, dir: os.ModeSticky | 0o777, refused: true},
		"link to a writable file":           {file: 0o666, dir: 0o755, link: true, refused: true},
		"link into a writable directory":    {file: 0o644, dir: 0o777, link: true, refused: true},
		"link to an ordinary file":          {file: 0o644, dir: 0o755, link: true},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			path := write(t, base, "d/10-net.conflist", good)
			expect.NoError(t, os.Chmod(path, test.file))
			expect.NoError(t, os.Chmod(filepath.Dir(path), test.dir))
			if test.link {
				link := filepath.Join(base, "link.conflist")
				expect.NoError(t, os.Symlink(path, link))
				path = link
			}
			_, err := conflist.Reader{}.File(path)
			refused := errors.Is(err, plainfile.ErrInsecure)
			expect.That(t, refused == test.refused && (err != nil) == test.refused, "error %v, want a refusal: %v", err, test.refused)
			expect.Succeeds(t, "though allowed", expect.Err((conflist.Reader{Insecure: []string{"/"}}).File(path)))
		})
	}
}

// TestDuty_R8_PluginsOfTheNetworksOwnDirectory: the plugins of <dir>/<name>/
// follow those of the list, sorted by name, unless the list disables that.
func TestDuty_R8_PluginsOfTheNetworksOwnDirectory(t *testing.T) {
	const inlined = `"plugins": [{"type": "inlined"}]`
	more := map[string]string{
		"net/20-b.conf":     `{"type": "b", "big": 9007199254740993}`,
		"net/10-a.conf":     `{"type": "a"}`,
		"net/30-c.conflist": `{"type": "not a .conf"}`,
		"net/.hidden.conf":  `{"type": "hidden"}`,
		"net/d.conf/x.conf": `{"type": "deeper"}`,
		"other/10-a.conf":   `{"type": "another network's"}`,
	}
	for name, test := range map[string]struct {
		list  string
		files map[string]string
		want  []string
		err   string
	}{
		"inlined and directory": {list: inlined, files: more, want: []string{"inlined", "a", "b"}},
		"directory only":        {list: `"disableGC": false`, files: more, want: []string{"a", "b"}},
		"inlined only": {
			list: inlined + `, "loadOnlyInlinedPlugins": true`, files: more, want: []string{"inlined"},
		},
		"no directory":           {list: inlined, want: []string{"inlined"}},
		"no plugins anywhere":    {list: `"disableGC": false`, err: "no plugins in list"},
		"directory is a file":    {list: inlined, files: map[string]string{"net": "x"}, err: "cannot be read"},
		"plugin half written":    {list: inlined, files: map[string]string{"net/10-a.conf": `{"type":`}, err: "net/10-a.conf: error parsing configuration"},
		"plugin without type":    {list: inlined, files: map[string]string{"net/10-a.conf": `{}`}, err: "net/10-a.conf: error parsing configuration: missing 'type'"},
		"plugin with a path":     {list: inlined, files: map[string]string{"net/10-a.conf": `{"type": "../x"}`}, err: `net/10-a.conf: type "../x" is not a file name`},
		"bad, but only inlined":  {list: inlined + `, "loadOnlyInlinedPlugins": true`, files: map[string]string{"net/10-a.conf": `{`}, want: []string{"inlined"}},
		"the name is in the way": {list: inlined, files: map[string]string{"net/10-a.conf/x": ``}, want: []string{"inlined"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range test.files {
				write(t, dir, file, content)
			}
			path := write(t, dir, "10-net.conflist", `{"cniVersion": "1.1.0", "name": "net", `+test.list+`}`)
			list, err := conflist.Reader{}.File(path)
			if test.err != "" {
				expect.Says(t, "error", err, test.err)
				return
			}
			expect.NoError(t, err)
			expect.Same(t, "plugins", summary(list).Types, test.want)
		})
	}
}

// TestDuty_R8_NameIsNoPathYet: the name is validated before it becomes a
// directory's path.
func TestDuty_R8_NameIsNoPathYet(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "secret/10-a.conf", `{"type": "evil"}`)
	for _, name := range []string{"../secret", "../../secret", ".", "..", "", "secret/", "/" + dir + "/secret"} {
		path := write(t, dir, "net.d/10-net.conflist", fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q}`, name))
		list, err := conflist.Reader{}.File(path)
		if err == nil {
			t.Errorf("name %q read plugins %q", name, summary(list).Types)
		} else if strings.Contains(err.Error(), "10-a.conf") {
			t.Errorf("name %q made it look at %v", name, err)
		}
	}
}

// TestDuty_R10_PluginOfADirectoryIsKeptToTheByte like those in a list.
func TestDuty_R10_PluginOfADirectoryIsKeptToTheByte(t *testing.T) {
	const plugin = "{ \"type\": \"a\", \"big\": 9007199254740993, \"s\": \"<&>\" }\n"
	dir := t.TempDir()
	write(t, dir, "net/10-a.conf", plugin)
	list := expect.Value(conflist.Reader{}.File(write(t, dir, "net.conflist", good)))(t)
	want := []string{`{"type": "bridge", "n": "<&>"}`, plugin}
	expect.Same(t, "plugins", summary(list).Plugins, want)
}
