package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/embedcni/cni"
)

// streams are without a terminal, and without an environment.
func streams(out, errs io.Writer) Streams {
	return Streams{
		In: strings.NewReader(""), Out: out, Err: errs, Getenv: func(string) string { return "" }, Now: time.Now,
		Columns: func(io.Writer) int { return 0 }, Seconds: seconds,
	}
}

// every returns all commands with their paths.
func every(cmd *cobra.Command) (all []*cobra.Command) {
	all = append(all, cmd)
	for _, below := range cmd.Commands() {
		all = append(all, every(below)...)
	}
	return all
}

// TestEveryCommandIsExplained holds the texts from which help and man pages are made to form.
func TestEveryCommandIsExplained(t *testing.T) {
	sentence := regexp.MustCompile(`^[A-Z][a-zA-Z]*s( |, ).*[a-z)]\.$`)
	for _, cmd := range every(Root(streams(io.Discard, io.Discard))) {
		path := cmd.CommandPath()
		if !sentence.MatchString(cmd.Short) {
			t.Errorf("%s: the short help is no sentence that says what the command does: %q", path, cmd.Short)
		}
		if long := strings.TrimSpace(cmd.Long); len(long) <= len(cmd.Short) {
			t.Errorf("%s: the long help says no more than the short one: %q", path, long)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("%s --%s: the usage is empty or ends with a period: %q", path, f.Name, f.Usage)
			}
		})
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 100 {
				t.Errorf("%s: a line of the help is too long for a terminal: %q", path, line)
			}
		}
	}
}

// TestUsage is about command lines that are wrong: nothing runs, and the exit code says so.
func TestUsage(t *testing.T) {
	for _, test := range []struct {
		line, want string
	}{
		{"nonsense", `embedcni: unknown command "nonsense" for "embedcni"`},
		{"shwo", `embedcni: unknown command "shwo" for "embedcni"; do you mean show?`},
		{"list --nonsense", "embedcni list: unknown flag: --nonsense"},
		{"show", "embedcni show: accepts 1 arg(s), received 0"},
		{"remove", "embedcni remove: requires at least 1 arg(s), only received 0"},
		{"list web", `embedcni list: unknown command "web" for "embedcni list"`},
		{"add pods", "embedcni add: 1 arguments are given: it wants the name of a network and the path of a network namespace"},
		{"cleanup web pods", "embedcni cleanup: 2 arguments are given: it wants the ID of a container, and perhaps a network and an interface"},
		{"list --color sometimes", `embedcni list: --color "sometimes" is none of auto, always, never`},
		{"list --owner=", "embedcni list: --owner is empty: name a program, as 'embedcni list --all-owners' does"},
		{"list --builtin=", "embedcni list: --builtin is empty: it is fallback, all, or types such as bridge,host-local"},
		{"list --address here", `embedcni list: --address: ParseAddr("here"): unable to parse IP`},
		{"gc --keep web --keep-none", "embedcni gc: give either --keep with the containers that stay, or --keep-none"},
		{"list --builtin nonsense", `embedcni list: WithBuiltinPlugins: plugin "nonsense" is not built in: invalid argument`},
		{"show a/b", `embedcni show: container ID "a/b" has invalid characters: invalid argument`},
		{"release --yes", "embedcni release: --yes needs IDs: nothing is removed that is not named; 'embedcni release' lists the containers"},
		{"add pods /run/netns/web --args FOO", `embedcni add: CNI_ARGS has "FOO": it is KEY=VALUE, and pairs are separated by semicolons`},
		{"add pods /run/netns/web --cap-args FOO", `embedcni add: CAP_ARGS: invalid character 'F' looking for beginning of value: it is a JSON object such as {"portMappings": [...]}`},
		{"add pods /run/netns/web --publish no:80", `embedcni add: --publish `},
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append(strings.Fields(test.line), "--state-dir", t.TempDir()), streams(&out, &errs))
		first, second, _ := strings.Cut(errs.String(), "\n")
		command, _, _ := strings.Cut(test.want, ":")
		advice := fmt.Sprintf("  See '%s --help'.\n", command)
		if code != exitUsage || !strings.HasPrefix(first, test.want) || !strings.HasSuffix(second, advice) || out.Len() > 0 {
			t.Errorf("%s: exit code %d\n%s%s", test.line, code, errs.String(), out.String())
		}
	}
}

// TestColors is about when the output has colors.
func TestColors(t *testing.T) {
	for _, test := range []struct {
		flag    string
		columns int
		env     map[string]string
		want    bool
	}{
		{"auto", 80, nil, true},
		{"auto", 0, nil, false},
		{"auto", 80, map[string]string{"NO_COLOR": "1"}, false},
		{"auto", 80, map[string]string{"TERM": "dumb"}, false},
		{"never", 80, nil, false},
		{"always", 0, map[string]string{"NO_COLOR": "1"}, true},
	} {
		s := streams(io.Discard, io.Discard)
		s.Getenv = func(name string) string { return test.env[name] }
		s.Columns = func(io.Writer) int { return test.columns }
		a := &app{Streams: s, flags: flags{color: test.flag}}
		if got := a.colors(s.Out); got != test.want {
			t.Errorf("%+v: colors are %t", test, got)
		}
	}
}

// TestTableIsAlignedWithColors compares tables letter by letter.
func TestTableIsAlignedWithColors(t *testing.T) {
	tab := table{header: []string{"NAME", "STATE", "WHY"}}
	tab.add(cell{text: "web-1"}, cell{"broken", red}, cell{text: "a\nb"})
	tab.add(cell{text: "ü"}, cell{"healthy", green}, cell{})
	got := tab.format(true)
	want := "NAME   STATE    WHY\n" +
		"web-1  \x1b[31mbroken\x1b[0m   a; b\n" +
		"ü      \x1b[32mhealthy\x1b[0m  -\n"
	if got != want {
		t.Errorf("got:\n%q\nwant:\n%q", got, want)
	}
	if escapes := regexp.MustCompile(`\x1b\[[0-9]*m`); tab.format(false) != escapes.ReplaceAllString(want, "") {
		t.Errorf("without colors:\n%s", tab.format(false))
	}
}

// TestProgress is about the line on a terminal: it comes with the first second, tells what is
// done, and is wiped.
func TestProgress(t *testing.T) {
	written, errs := io.Pipe()
	ticks := make(chan time.Time)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := streams(io.Discard, errs)
	s.Columns = func(io.Writer) int { return 30 }
	s.Seconds = func() (<-chan time.Time, func()) { return ticks, func() {} }
	s.Now = func() time.Time { return now }
	a := &app{Streams: s}

	read := func() string {
		buffer := make([]byte, 100)
		n, err := written.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
	p := a.begin("remove", 3)
	p.step()
	ticks <- now
	first := read()
	p.step()
	ticks <- now
	lines := []string{first, read()}
	ended := make(chan struct{})
	go func() { p.end(); close(ended) }()
	lines = append(lines, read())
	<-ended
	want := []string{"\r\x1b[Kremove: 1 of 3, 0 s", "\r\x1b[Kremove: 2 of 3, 0 s", "\r\x1b[K"}
	if !slices.Equal(lines, want) {
		t.Errorf("the lines are %q, not %q", lines, want)
	}
}

// TestProgressIsForTerminals is about everybody else: they get nothing, and nothing runs.
func TestProgressIsForTerminals(t *testing.T) {
	var errs bytes.Buffer
	s := streams(io.Discard, &errs)
	s.Seconds = func() (<-chan time.Time, func()) { t.Error("it waits for a second"); return nil, func() {} }
	p := (&app{Streams: s}).begin("remove", 3)
	p.step()
	p.end()
	if errs.Len() > 0 {
		t.Errorf("stderr has %q", errs.String())
	}
}

// TestAdvice is about errors that only say what is wrong.
func TestAdvice(t *testing.T) {
	a := &app{flags: flags{stateDir: "/state", timeout: time.Second}}
	for err, want := range map[error]string{
		cni.ErrNotAttached:    "'embedcni list --all-owners' shows what is on record in /state.",
		cni.ErrPluginNotFound: "Install the plugin in a directory of --plugin-dir, or have it built in with --builtin=all.",
		cni.ErrBusy:           "Another call for the container is under way; try again when it has ended.",
		cni.ErrInsecureFile:   "Take write permission from other users: chmod o-w, or chown root.",
		fs.ErrPermission:      "Run the command as root: it reads the records, and enters and changes network namespaces.",
		syscall.EPERM:         "Run the command as root: it reads the records, and enters and changes network namespaces.",

		context.DeadlineExceeded:                     "Give it more time with --timeout.",
		usageError("no"):                             "See 'embedcni list --help'.",
		advise(cni.ErrNotAttached, "Do %s.", "that"): "Do that.",
		errors.New("other"):                          "",
	} {
		if got := a.advice("embedcni list", fmt.Errorf("list: %w", err)); got != want {
			t.Errorf("%v: the advice is %q, not %q", err, got, want)
		}
	}
}
