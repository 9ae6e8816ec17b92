package cni_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// documents returns the files that people read, by their paths.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md"} {
		for _, path := range expect.Value(filepath.Glob(pattern))(t) {
			texts[path] = string(expect.Value(os.ReadFile(path))(t))
		}
	}
	expect.Must(t, texts["README.md"] != "" && texts["docs/tutorial.md"] != "", "the documents are not found")
	return texts
}

var linkTarget = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksLeadSomewhere: a link to a file of the tree, and to a heading in it.
func TestLinksLeadSomewhere(t *testing.T) {
	for path, text := range documents(t) {
		for _, m := range linkTarget.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			if anchor != "" {
				headings := anchors(string(expect.Value(os.ReadFile(target))(t)))
				expect.That(t, slices.Contains(headings, anchor), "%s links to %s, and the headings are %v", path, m[1], headings)
			}
		}
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

func TestAnchorsAreGitHubs(t *testing.T) {
	expect.Same(t, "anchors", anchors("# `A` b: c\n```sh\n# no heading\n```\n## Which call when?\n"), []string{"a-b-c", "which-call-when"})
}

var (
	released = regexp.MustCompile(`(?m)^## (v[0-9.]+)`)
	named    = regexp.MustCompile(`github\.com/embedcni/cni[a-z/]*@(v[0-9.]+)`)
)

// TestDocumentsNameOneVersion: that of CHANGELOG's last release.
func TestDocumentsNameOneVersion(t *testing.T) {
	texts := documents(t)
	want := ""
	if m := released.FindStringSubmatch(texts["CHANGELOG.md"]); m != nil {
		want = m[1]
	}
	versions := map[string]string{}
	for path, text := range texts {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			version := strings.TrimRight(m[1], ".")
			versions[path] = version
			if want == "" {
				want = version // nothing is released
			}
			expect.Same(t, path+" names the version", version, want)
		}
	}
	expect.That(t, versions["README.md"] != "", "README.md names no version: %v", versions)
}
