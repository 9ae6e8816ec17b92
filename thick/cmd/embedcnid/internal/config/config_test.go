package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// values has for each key another value than the default: in a file, as a flag, and as Value
// shows it.
var values = map[string][3]string{
	"socket":                {"/s/multus.sock", "/s/multus.sock", "/s/multus.sock"},
	"uid":                   {"1000", "1000", "1000"},
	"queueDir":              {"/q", "/q", "/q"},
	"stateDir":              {"/st", "/st", "/st"},
	"recordDir":             {"/r", "/r", "/r"},
	"owner":                 {`"7"`, "7", "7"},
	"hostNetNS":             {"/run/netns/h", "/run/netns/h", "/run/netns/h"},
	"readinessFile":         {"/f", "/f", "/f"},
	"shutdownGrace":         {"0s", "0s", "0s"},
	"healthInterval":        {"1m", "1m", "1m"},
	"http.address":          {"'[::1]:9'", "[::1]:9", "[::1]:9"},
	"log.level":             {"debug", "debug", "debug"},
	"log.format":            {"json", "json", "json"},
	"confDir":               {`""`, "", ""},
	"networks":              {"all", "all", "all"},
	"pluginDirs":            {"[/a, /b]", "/a,/b", "[/a, /b]"},
	"pluginRoot":            {"/host", "/host", "/host"},
	"builtinPlugins":        {"[all]", "all", "[all]"},
	"pluginEnv":             {"[A, B*]", "A,B*", "[A, B*]"},
	"strictPorts":           {"true", "true", "true"},
	"insecureFiles":         {"[/a, /b]", "/a,/b", "[/a, /b]"},
	"gc":                    {"true", "true", "true"},
	"guard.classes":         {"[rules, links, routes]", "rules,links,routes", "[rules, links, routes]"},
	"guard.legacyInterval":  {"30s", "30s", "30s"},
	"timeouts.add":          {"1s", "1s", "1s"},
	"timeouts.del":          {"2s", "2s", "2s"},
	"timeouts.check":        {"1h30m", "1h30m", "1h30m"},
	"timeouts.status":       {"4s", "4s", "4s"},
	"retry.attempts":        {"3", "3", "3"},
	"retry.delay":           {"1s", "1s", "1s"},
	"retry.maxDelay":        {"2m", "2m", "2m"},
	"limits.concurrent":     {"2", "2", "2"},
	"limits.queued":         {"3", "3", "3"},
	"limits.request":        {"1000", "1000", "1000"},
	"limits.requests":       {"2000", "2000", "2000"},
	"limits.deadline":       {"1m", "1m", "1m"},
	"limits.transfer":       {"1s", "1s", "1s"},
	"kubernetes.enabled":    {"true", "true", "true"},
	"kubernetes.node":       {"n1", "n1", "n1"},
	"kubernetes.kubeconfig": {"/k", "/k", "/k"},
	"kubernetes.isolated":   {"true", "true", "true"},
	"kubernetes.global":     {"[default]", "default", "[default]"},
	"kubernetes.events":     {"false", "false", "false"},
	"kubernetes.timeout":    {"1s", "1s", "1s"},
	"kubernetes.qps":        {"5", "5", "5"},
	"kubernetes.burst":      {"6", "6", "6"},
}

// nested returns a file with one key.
func nested(name, value string) string {
	if section, field := split(name); section != "" {
		return fmt.Sprintf("%s:\n  %s: %s\n", section, field, value)
	}
	return name + ": " + value + "\n"
}

// TestEveryKey is set by a file and by a flag, and nothing else is.
func TestEveryKey(t *testing.T) {
	for _, k := range Keys() {
		v, ok := values[k.Name]
		if !ok {
			t.Errorf("%s has no other value here", k.Name)
			continue
		}
		byFile := Default()
		expect.NoError(t, byFile.Parse([]byte(nested(k.Name, v[0]))))
		byFlag := Default()
		flagsOf(t, "--"+k.Name+"="+v[1]).apply(&byFlag)
		for by, c := range map[string]Config{"file": byFile, "flag": byFlag} {
			merged, changed, restart := Default().Merge(c)
			expect.Same(t, k.Name+" by "+by, k.Value(&c), v[2])
			expect.Same(t, "keys that differ", append(changed, restart...), []string{k.Name})
			want := Default()
			if k.Live {
				want = c
			}
			expect.Same(t, k.Name+" without a restart", merged, want)
		}
	}
	expect.Same(t, "keys", len(values), len(Keys()))
}

// TestEveryFieldHasOneKey compares the table with the fields.
func TestEveryFieldHasOneKey(t *testing.T) {
	var c Config
	keys := map[any][]string{}
	for _, k := range Keys() {
		keys[k.at(&c)] = append(keys[k.at(&c)], k.Name)
		expect.That(t, k.Doc != "" && !strings.Contains(k.Doc, "|") && !strings.HasSuffix(k.Doc, "."), "%s: %q is no text for a table", k.Name, k.Doc)
	}
	var look func(v reflect.Value, path string)
	look = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			field, name := v.Field(i), path+"."+v.Type().Field(i).Name
			if field.Kind() == reflect.Struct {
				look(field, name)
			} else if of := keys[field.Addr().Interface()]; len(of) != 1 {
				t.Errorf("the keys of %s are %v", name, of)
			}
		}
	}
	look(reflect.ValueOf(&c).Elem(), "Config")
}

// flagsOf returns the flags of a command line.
func flagsOf(t *testing.T, args ...string) *Flags {
	t.Helper()
	var f Flags
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	f.Register(set)
	expect.NoError(t, set.Parse(args))
	return &f
}

// loaded returns the configuration of a file and of a command line, and its mistakes.
func loaded(t *testing.T, file string, args ...string) (Config, []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	expect.NoError(t, os.WriteFile(path, []byte(file), 0o600))
	c, err := Load(path, flagsOf(t, args...))
	if err == nil {
		return c, nil
	}
	var texts []string
	for _, one := range Findings(err) {
		texts = append(texts, strings.TrimPrefix(one.Error(), path+": "))
	}
	return c, texts
}

func TestFilesAreRead(t *testing.T) {
	want := Default()
	want.PluginDirs, want.Log.Level, want.Limits.Queued = []string{"/a"}, "warn", 5
	for name, file := range map[string]string{
		"YAML":           "# a comment\npluginDirs: [/a]\nlog:\n  level: warn\nlimits: {queued: 5}\n",
		"JSON":           `{"pluginDirs": ["/a"], "log": {"level": "warn"}, "limits": {"queued": 5}}`,
		"with tabs":      "{\n\t\"pluginDirs\": [\"/a\"],\n\t\"log\": {\"level\": \"warn\"},\n\t\"limits\": {\"queued\": 5}\n}\n",
		"with comments":  "{\n  # where plugins are\n  \"pluginDirs\": [\"/a\"], # one\n  \"log\": {\"level\": \"warn\"}, \"limits\": {\"queued\": 5}\n}\n",
		"null: defaults": "pluginDirs: [/a]\nlog: {level: warn}\nlimits: {queued: 5, deadline: null}\nsocket: null\nguard: null\ngc:\n",
	} {
		got, mistakes := loaded(t, file)
		expect.Same(t, name, mistakes, nil)
		expect.Same(t, name, got, want)
	}
	for _, empty := range []string{"", "# nothing\n", "{}", "null"} {
		got, mistakes := loaded(t, empty)
		expect.Same(t, "mistakes in "+empty, mistakes, nil)
		expect.Same(t, empty, got, Default())
	}
}

func TestFlagsWin(t *testing.T) {
	got, mistakes := loaded(t, "log: {level: warn}\ngc: true\npluginDirs: [/a]\n", "--log.level", "debug", "--gc=false", "--strictPorts", "--pluginDirs=/b,/c", "--pluginDirs=/d")
	expect.Same(t, "mistakes", mistakes, nil)
	want := Default()
	want.Log.Level, want.StrictPorts, want.PluginDirs = "debug", true, []string{"/d"}
	expect.Same(t, "configuration", got, want)
	withoutFile, err := Load("", flagsOf(t, "--owner=x"))
	want = Default()
	want.Owner = "x"
	expect.NoError(t, err)
	expect.Same(t, "without a file", withoutFile, want)
	if _, err := Load(filepath.Join(t.TempDir(), "none"), &Flags{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
}

func TestMistakesAreRefused(t *testing.T) {
	long := "/" + strings.Repeat("x", 107)
	for file, want := range map[string][]string{
		"sokcet: /a":                       {"sokcet: there is no such key; do you mean socket?"},
		"Socket: /a":                       {"Socket: there is no such key; do you mean socket?"},
		"log: {levle: info}":               {"log.levle: there is no such key; do you mean log.level?"},
		"address: ':1'":                    {"address: there is no such key; do you mean http.address?"},
		"limits: {level: info}":            {"limits.level: there is no such key; do you mean log.level?"},
		"elephants: 1":                     {"elephants: there is no such key; --help lists them"},
		"gc: 1\nlog: {x: 1}\nuid: a":       {"gc: want true or false, not 1", "log.x: there is no such key; --help lists them", `uid: want a number, not "a"`},
		"gc: true\ngc: false":              {`yaml: unmarshal errors:` + "\n" + `  line 2: key "gc" already set in map`},
		"log: debug":                       {`log: want keys with values, not "debug"`},
		"[1]":                              {"the file: want keys with values, not [1]"},
		"log: {level: {a: 1}}":             {`log.level: want a text, not {"a":1}`},
		"owner: 7":                         {"owner: want a text, not 7"},
		"pluginDirs: /a":                   {`pluginDirs: want a list of texts, such as [a, b], not "/a"`},
		"shutdownGrace: 5":                 {"shutdownGrace: want a time, such as 10s or 1m30s, not 5"},
		"shutdownGrace: soon":              {`shutdownGrace: want a time, such as 10s or 1m30s, not "soon"`},
		"limits: {queued: 1.5}":            {"limits.queued: want a number, not 1.5"},
		"owner: ''":                        {"owner: it is empty"},
		"socket: ''":                       {`socket: "" is not an absolute path`},
		"socket: " + long:                  {"socket: the path has 108 bytes, and a socket's may have 107"},
		"queueDir: a\nstateDir: b":         {`queueDir: "a" is not an absolute path`, `stateDir: "b" is not an absolute path`},
		"recordDir: a\nhostNetNS: b":       {`recordDir: "a" is not an absolute path`, `hostNetNS: "b" is not an absolute path`},
		"readinessFile: a\nconfDir: b":     {`readinessFile: "a" is not an absolute path`, `confDir: "b" is not an absolute path`},
		"insecureFiles: [c]":               {`insecureFiles: "c" is not an absolute path`},
		"pluginRoot: a\npluginDirs: [b]":   {`pluginRoot: "a" is not an absolute path`, `pluginDirs: "b" is not an absolute path`},
		"kubernetes: {kubeconfig: a}":      {`kubernetes.kubeconfig: "a" is not an absolute path`},
		"kubernetes: {enabled: true}":      {"kubernetes.node: it is empty; in a pod, have the downward API put spec.nodeName into its environment"},
		"uid: -1":                          {"uid: -1 is too small"},
		"uid: 65534":                       {"uid: user 65534 cannot be told from users of other user namespaces"},
		"limits: {concurrent: 0}":          {"limits.concurrent: 0 is too small"},
		"limits: {request: 0}":             {"limits.request: 0 is too small"},
		"timeouts: {add: 0s, del: -1s}":    {"timeouts.add: 0s is too small", "timeouts.del: -1s is too small"},
		"retry: {attempts: 0}":             {"retry.attempts: 0 is too small"},
		"shutdownGrace: -1s":               {"shutdownGrace: -1s is too small"},
		"networks: some":                   {`networks: "some" is none of first, all`},
		"log: {level: loud, format: xml}":  {`log.format: "xml" is none of text, json`, `log.level: "loud" is none of debug, info, warn, error`},
		"guard: {classes: [rules, ports]}": {`guard.classes: "ports" is none of rules, links, routes`},
		"builtinPlugins: [all, bridge]":    {`builtinPlugins: "all" stands alone`},
		"http: {address: localhost}":       {"http.address: address localhost: missing port in address"},
		"http: {address: 'localhost:web'}": {`http.address: "web" is no port`},
		"http: {address: 'localhost:0'}":   {"http.address: port 0 is chosen anew at each start, and nobody could find it"},
	} {
		_, got := loaded(t, file)
		expect.Same(t, file, got, want)
	}
	for _, arg := range []string{"--uid=a", "--gc=maybe", "--shutdownGrace=5", "--limits.request=x"} {
		set := flag.NewFlagSet("", flag.ContinueOnError)
		set.SetOutput(io.Discard)
		new(Flags).Register(set)
		expect.Fails(t, arg+" is accepted", set.Parse([]string{arg}))
	}
}

// TestTheTableOfKeys: docs/operating.md has the table of the keys.
func TestTheTableOfKeys(t *testing.T) {
	document := string(expect.Value(os.ReadFile("../../../../../docs/operating.md"))(t))
	expect.That(t, strings.Contains(document, "\n"+Markdown()+"\n"), "docs/operating.md has not this table:\n%s", Markdown())
	var help strings.Builder
	expect.NoError(t, WriteKeys(&help))
	var names []string
	for line := range strings.Lines(help.String()) {
		names = append(names, strings.Fields(line)[0])
	}
	var want []string
	for _, k := range Keys() {
		want = append(want, k.Name)
	}
	expect.Same(t, "keys in --help", names, want)
	expect.Same(t, "once each", len(slices.Compact(slices.Sorted(slices.Values(want)))), len(want))
}
