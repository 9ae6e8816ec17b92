//go:build unix

package invoke

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// put makes a file, ignoring the umask.
func put(t *testing.T, mode fs.FileMode, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	expect.NoError(t, os.WriteFile(path, nil, 0o600))
	expect.NoError(t, os.Chmod(path, mode))
	return path
}

func dir(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	d := filepath.Join(t.TempDir(), "bin")
	expect.NoError(t, os.Mkdir(d, 0o700))
	expect.NoError(t, os.Chmod(d, mode))
	return d
}

func link(t *testing.T, target string, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	expect.NoError(t, os.Symlink(target, path))
	return path
}

func TestFind(t *testing.T) {
	a, b := dir(t, 0o755), dir(t, 0o755)
	second := put(t, 0o755, b, "bridge")
	first := put(t, 0o755, a, "ptp")
	put(t, 0o755, b, "ptp")
	put(t, 0o644, a, "plain")
	behind := put(t, 0o755, b, "plain")
	only := put(t, 0o644, a, "only")
	linked := link(t, second, a, "linked")
	link(t, filepath.Join(a, "nowhere"), a, "dangling")
	expect.NoError(t, os.Mkdir(filepath.Join(a, "folder"), 0o755))
	dirs := []string{"", a, "/nonexistent", b}
	missing := func(name string) string { return fmt.Sprintf("failed to find plugin %q in path %s", name, dirs) }
	tests := []struct {
		plugin, want, text string
	}{
		{plugin: "bridge", want: second},
		{plugin: "ptp", want: first},
		{plugin: "plain", want: behind},
		{plugin: "linked", want: linked},
		{plugin: "missing", text: missing("missing")},
		{plugin: "dangling", text: missing("dangling")},
		{plugin: "folder", text: missing("folder") + "; " + a + "/folder: not a regular file"},
		{plugin: "only", text: missing("only") + "; " + only + ": not executable: permission denied"},
		{plugin: "", text: "no plugin name provided"},
		{plugin: ".", text: `invalid plugin name: "."`},
		{plugin: "..", text: `invalid plugin name: ".."`},
		{plugin: "../bridge", text: `invalid plugin name: "../bridge"`},
		{plugin: `..\bridge`, text: `invalid plugin name: "..\\bridge"`},
		{plugin: "bridge\x00", text: `invalid plugin name: "bridge\x00"`},
	}
	for _, tt := range tests {
		t.Run(tt.plugin, func(t *testing.T) {
			got, err := Root("").Find(tt.plugin, dirs, nil)
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != tt.want || text != tt.text {
				t.Errorf("got  %q, %q\nwant %q, %q", got, text, tt.want, tt.text)
			}
		})
	}
}

func TestFindNothing(t *testing.T) {
	_, err := Root("").Find("x", []string{"/nonexistent/a", "/nonexistent/b"}, nil)
	if want := `failed to find plugin "x" in path [/nonexistent/a /nonexistent/b]`; !errors.Is(err, ErrNotFound) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	expect.Is(t, expect.Err(Root("").Find("x", nil, nil)), ErrNotFound)
}

func TestFindBelowARelativeDirectory(t *testing.T) {
	d := dir(t, 0o755)
	want := put(t, 0o755, d, "bridge")
	t.Chdir(filepath.Dir(d))
	if got, err := Root("").Find("bridge", []string{"bin"}, nil); got != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestFault_F24_PluginsThatAnybodyCouldHaveWritten(t *testing.T) {
	const sticky = fs.ModeSticky | 0o777
	safe := dir(t, 0o755)
	target := put(t, 0o755, safe, "target")
	open := dir(t, 0o777)
	tests := []struct {
		name    string
		path    string
		culprit string // "" if there is no objection
		mode    string
	}{
		{name: "the group may write", path: put(t, 0o775, dir(t, 0o775), "bridge")},
		{name: "a sticky directory", path: put(t, 0o755, dir(t, sticky), "bridge")},
		{name: "a link from a safe directory", path: link(t, target, dir(t, 0o755), "bridge")},
	}
	for _, d := range []fs.FileMode{0o755, sticky} {
		path := put(t, 0o757, dir(t, d), "bridge")
		tests = append(tests, struct{ name, path, culprit, mode string }{"everybody may write, directory " + d.String(), path, path, "-rwxr-xrwx"})
	}
	inOpen := put(t, 0o755, open, "bridge")
	fromOpen := dir(t, 0o777)
	tests = append(tests, []struct{ name, path, culprit, mode string }{
		{"an open directory", inOpen, open, "drwxrwxrwx"},
		{"a link into an open directory", link(t, inOpen, dir(t, 0o755), "bridge"), open, "drwxrwxrwx"},
		{"a link from an open directory", link(t, target, fromOpen, "bridge"), fromOpen, "drwxrwxrwx"},
	}...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dirs := []string{filepath.Dir(tt.path), safe}
			put(t, 0o755, safe, "bridge") // must not be used instead
			got, err := Root("").Find("bridge", dirs, nil)
			if tt.culprit == "" {
				if got != tt.path || err != nil {
					t.Errorf("got %q, %v; want %q", got, err, tt.path)
				}
				return
			}
			want := fmt.Sprintf(`plugin "bridge": %s (mode %s, owner %d) is writable by everybody: run chmod o-w on it, or allow insecure files (WithInsecureFiles)`, tt.culprit, tt.mode, os.Geteuid())
			if !errors.Is(err, plainfile.ErrInsecure) || err.Error() != want || got != "" {
				t.Errorf("got  %q, %v\nwant %s", got, err, want)
			}
			if got, err := Root("").Find("bridge", dirs, []string{"/"}); got != tt.path || err != nil {
				t.Errorf("allowed: got %q, %v; want %q", got, err, tt.path)
			}
		})
	}
}

func TestFault_F23_Environ(t *testing.T) {
	path := "PATH=" + defaultPath
	tests := []struct {
		name        string
		base, allow []string
		want        []string
	}{
		{"nothing", nil, nil, []string{path}},
		{
			"secrets stay",
			[]string{"PATH=/bin", "TOKEN=x", "HOME=/root", "HTTP_PROXY=http://u:p@h", "TZ=UTC"}, DefaultAllow(),
			[]string{"PATH=/bin", "TZ=UTC"},
		},
		{"an empty PATH is none", []string{"PATH="}, nil, []string{path}},
		{"the last one wins", []string{"TZ=a", "PATH=/a", "TZ=b", "PATH=/b"}, []string{"TZ"}, []string{"PATH=/b", "TZ=b"}},
		{
			"a prefix",
			[]string{"PATH=/bin", "FOO_A=1", "FOO_B=2", "FO=3", "XFOO_=4"}, []string{"FOO_*"},
			[]string{"FOO_A=1", "FOO_B=2", "PATH=/bin"},
		},
		{"a name is no prefix", []string{"PATH=/bin", "TZDIR=/x"}, []string{"TZ"}, []string{"PATH=/bin"}},
		{"empty allows nothing", []string{"PATH=/bin", "=x", "NAME", "A=1"}, []string{""}, []string{"PATH=/bin"}},
		{
			"another request's variables",
			[]string{"PATH=/bin", "CNI_COMMAND=DEL", "CNI_ARGS=IP=10.0.0.9", "CNI_NETNS_OVERRIDE=1"}, []string{"*"},
			[]string{"CNI_NETNS_OVERRIDE=1", "PATH=/bin"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect.Same(t, "environment", Environ(tt.base, tt.allow), tt.want)
		})
	}
}

func TestTraceEnv(t *testing.T) {
	state := expect.Value(trace.ParseTraceState("vendor=1"))(t)
	member := expect.Value(baggage.NewMember("tenant", "blue"))(t)
	bag := expect.Value(baggage.New(member))(t)
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	traced := trace.ContextWithSpanContext(context.Background(), span)
	const parent = "TRACEPARENT=00-01000000000000000000000000000000-0200000000000000-01"
	tests := []struct {
		name string
		ctx  context.Context
		want []string
	}{
		{"no span", context.Background(), nil},
		{"baggage alone", baggage.ContextWithBaggage(context.Background(), bag), nil},
		{"a span", traced, []string{parent}},
		{
			"everything",
			baggage.ContextWithBaggage(trace.ContextWithSpanContext(context.Background(), span.WithTraceState(state)), bag),
			[]string{parent, "TRACESTATE=vendor=1", "BAGGAGE=tenant=blue"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect.Same(t, "environment", TraceEnv(tt.ctx), tt.want)
		})
	}
}
