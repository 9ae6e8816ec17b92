package cli

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/cmd/embedcni/internal/audit"
	"github.com/embedcni/cni/cmd/embedcni/internal/conf"
	"github.com/embedcni/cni/cmd/embedcni/internal/graph"
	"github.com/embedcni/cni/cmd/embedcni/internal/watch"
	"github.com/embedcni/cni/internal/expect"
)

// TestPageOfTheOperator compares the sessions in docs/command.md with the transcripts. A line
// "…" stands for any lines.
func TestPageOfTheOperator(t *testing.T) {
	page := string(expect.Value(os.ReadFile("../../../../docs/command.md"))(t))
	played := map[string][]string{}
	for _, file := range expect.Value(filepath.Glob("testdata/*.txt"))(t) {
		for _, run := range runs(string(expect.Value(os.ReadFile(file))(t))) {
			command, _, _ := strings.Cut(run, "\n")
			played[command] = append(played[command], run)
		}
	}
	shown := 0
	for _, block := range strings.Split(page, "```text\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		for _, run := range runs(block) {
			shown++
			command, _, _ := strings.Cut(run, "\n")
			if !slices.ContainsFunc(played[command], func(whole string) bool { return abridges(run, whole) }) {
				t.Errorf("no transcript has\n%s", run)
			}
		}
	}
	if shown == 0 {
		t.Error("the page shows no session")
	}
}

// runs splits a session into the runs of the program, each with its output.
func runs(session string) (all []string) {
	for _, run := range strings.Split("\n"+session, "\n$ ")[1:] {
		run, _, _ = strings.Cut(run, "\n# ")
		all = append(all, strings.TrimSpace(run))
	}
	return all
}

// abridges reports whether a text is a whole one in which lines are left out.
func abridges(text, whole string) bool {
	kept := strings.Split(text, "\n…\n")
	if !strings.HasPrefix(whole, kept[0]) {
		return false
	}
	rest := whole[len(kept[0]):]
	for _, part := range kept[1:] {
		at := strings.LastIndex(rest, "\n"+part)
		if at < 0 {
			return false
		}
		rest = rest[at+1+len(part):]
	}
	return rest == ""
}

// TestPageListsTheJSON compares the fields of the page's table with those of the documents. A
// row leaves attachments to that of list, and differences to that of health.
func TestPageListsTheJSON(t *testing.T) {
	page := string(expect.Value(os.ReadFile("../../../../docs/command.md"))(t))
	_, section, ok := strings.Cut(page, "\n## JSON\n")
	expect.Must(t, ok, "the page has no section on JSON")
	rowOf := func(command string) string {
		_, line, _ := strings.Cut(section, "\n| `"+command+"`")
		line, _, _ = strings.Cut(line, "\n")
		return line
	}
	for command, view := range map[string]any{
		"list": attachmentView{}, "show": showView{}, "health": healthView{}, "repair": repairView{}, "remove": removeView{},
		"release": releaseView{}, "cleanup": cleanupView{}, "gc": gcView{}, "ready": readyView{}, "version": versionView{},
		"graph": graph.Host{}, "watch": watch.Event{}, "audit": audit.Finding{}, "conf check": conf.Finding{},
	} {
		listed := rowOf(command)
		if command == "show" || command == "release" {
			listed += rowOf("list")
		} else if command == "repair" {
			listed += rowOf("health")
		}
		for _, name := range fields(reflect.TypeOf(view)) {
			if !strings.Contains(listed, "`"+name+"`") {
				t.Errorf("the row of %s has no %s", command, name)
			}
		}
	}
}

// fields returns the names in the JSON of a type, and of those in it.
func fields(typ reflect.Type) (names []string) {
	switch typ.Kind() {
	case reflect.Slice:
		return fields(typ.Elem())
	case reflect.Struct:
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" {
				names = append(names, name)
			}
			if name != "" || f.Anonymous {
				names = append(names, fields(f.Type)...)
			}
		}
	}
	return names
}
