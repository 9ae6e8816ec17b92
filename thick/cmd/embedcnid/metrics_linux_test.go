package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/embedcni/cni/internal/expect"
)

// rule is an alert of deploy/prometheus/rules.yml.
type rule struct {
	Alert, Expr string
	Annotations map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	expect.NoError(t, yaml.Unmarshal(expect.Value(os.ReadFile(deploy+"/prometheus/rules.yml"))(t), &file))
	return file.Groups[0].Rules
}

// panel is one of deploy/grafana/embedcni.json.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []struct{ Expr string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	expect.NoError(t, json.Unmarshal(expect.Value(os.ReadFile(deploy+"/grafana/embedcni.json"))(t), &dashboard))
	return dashboard.Panels
}

// TestTheAlerts fire when they should, and lead to a heading of docs/operating.md.
func TestTheAlerts(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{{"check", "rules", "rules.yml"}, {"test", "rules", "rules_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(deploy, "prometheus")
		out, err := cmd.CombinedOutput()
		expect.Must(t, err == nil, "promtool %v: %v\n%s", args, err, out)
	}
	tests := string(expect.Value(os.ReadFile(deploy + "/prometheus/rules_test.yml"))(t))
	var alerts, explained []string
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		expect.Contains(t, "rules_test.yml", tests, fmt.Sprintf(`{labels: '{alertname="%s",instance="%[1]s"}', value: 1}`, r.Alert))
		expect.Same(t, r.Alert+" leads to", r.Annotations["runbook_url"], "https://github.com/embedcni/cni/blob/main/docs/operating.md#"+strings.ToLower(r.Alert))
		expect.That(t, r.Annotations["summary"] != "" && r.Annotations["description"] != "", "%s says %v", r.Alert, r.Annotations)
	}
	for _, m := range regexp.MustCompile(`(?m)^#### (Embedcni\w+)$`).FindAllStringSubmatch(operating(t), -1) {
		explained = append(explained, m[1])
	}
	expect.Same(t, "headings of docs/operating.md", explained, alerts)
}

// TestTheDashboard has a place for each panel.
func TestTheDashboard(t *testing.T) {
	all := panels(t)
	for i, p := range all {
		expect.Same(t, p.Title+": ID", p.ID, i+1)
		expect.That(t, p.Type == "row" || p.Description != "" && len(p.Targets) > 0, "panel %q has no description or no query", p.Title)
		expect.That(t, p.GridPos.X+p.GridPos.W <= 24, "panel %q is too wide", p.Title)
		for _, q := range all[:i] {
			a, b := p.GridPos, q.GridPos
			apart := a.X >= b.X+b.W || b.X >= a.X+a.W || a.Y >= b.Y+b.H || b.Y >= a.Y+a.H
			expect.That(t, apart && p.Title != q.Title || p.Type != q.Type, "panels %q and %q are in one place", p.Title, q.Title)
		}
	}
}

func operating(t *testing.T) string {
	t.Helper()
	return string(expect.Value(os.ReadFile("../../../docs/operating.md"))(t))
}

// block returns the text of the block of docs/operating.md that begins so.
func block(t *testing.T, kind, begin string) string {
	t.Helper()
	_, text, found := strings.Cut(operating(t), "\n```"+kind+"\n"+begin)
	expect.Must(t, found, "docs/operating.md has no block that begins with %q", begin)
	text, _, _ = strings.Cut(text, "```")
	return begin + text
}

// prometheusAt is the address of Prometheus in the namespace of the tests.
const prometheusAt = "127.0.0.1:9420"

// startPrometheus has a Prometheus scrape the daemon and evaluate the rules as docs/operating.md
// shows, until the test ends.
func startPrometheus(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	shown := strings.NewReplacer("node-1:9418", probesAt, "rules.yml", expect.Value(filepath.Abs(deploy+"/prometheus/rules.yml"))(t)).
		Replace(block(t, "yaml", "scrape_configs:"))
	expect.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\n"+shown), 0o644))
	cmd := exec.Command(tool(t, "prometheus"), "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data",
		"--web.listen-address="+prometheusAt, "--log.level=warn")
	log := expect.Value(os.Create(filepath.Join(dir, "log")))(t)
	cmd.Stdout, cmd.Stderr = log, log
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		expect.NoError(t, cmd.Process.Kill(), log.Close())
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("prometheus:\n%s", expect.Value(os.ReadFile(log.Name()))(t))
		}
	})
	expect.Eventually(t, "a scrape", func() bool { return len(result(t, `up{job="embedcnid"} == 1`)) > 0 })
}

// result returns the elements of a query's answer; none while Prometheus does not listen.
func result(t *testing.T, query string) []json.RawMessage {
	t.Helper()
	var answer struct {
		Error string
		Data  struct{ Result []json.RawMessage }
	}
	if !fetch(t, "/api/v1/query?query="+url.QueryEscape(query), &answer) {
		return nil
	}
	expect.Same(t, "error of "+query, answer.Error, "")
	return answer.Data.Result
}

// fetch reads an answer of Prometheus, and reports whether there is one.
func fetch(t *testing.T, path string, into any) bool {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: expect.Patience}
	answer, err := client.Get("http://" + prometheusAt + path)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusServiceUnavailable {
		return false // it is starting
	}
	expect.NoError(t, json.NewDecoder(answer.Body).Decode(into))
	return true
}

// comparison is the one with which an alert ends.
var comparison = regexp.MustCompile(` (==|>) ([0-9.]+)$`)

// queries are those of the dashboard and of the alerts by their titles. Those of alerts return
// whether they are met, so that each has an answer on a healthy node.
func queries(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, p := range panels(t) {
		for i, target := range p.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(target.Expr)
			found[fmt.Sprintf("panel %s, %d", p.Title, i+1)] = query
		}
	}
	for _, r := range rules(t) {
		expect.That(t, comparison.MatchString(r.Expr), "alert %s compares nothing", r.Alert)
		found["alert "+r.Alert] = comparison.ReplaceAllString(r.Expr, " $1 bool $2")
	}
	return found
}

// exposed returns the labels of each metric in an answer of /metrics.
func exposed(text string) map[string][]string {
	found := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
		labels := []string{}
		sample := regexp.MustCompile(`(?m)^` + m[1] + `(?:_bucket)?(?:{(.*)})? `).FindStringSubmatch(text)
		for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(sample[1], -1) {
			if l[1] != "le" {
				labels = append(labels, l[1])
			}
		}
		slices.Sort(labels)
		found[m[1]] = labels
	}
	return found
}

// TestEachQueryIsAnswered by a Prometheus that scrapes a daemon whose calls ran and failed, and
// docs/operating.md lists each metric.
func TestEachQueryIsAnswered(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	plugin := "#!/bin/sh\n[ \"$CNI_COMMAND\" != ADD ] || { echo '{\"code\": 104, \"msg\": \"no cable\"}'; exit 1; }\n"
	expect.NoError(t, os.WriteFile(filepath.Join(s.PluginDir, "full"), []byte(plugin), 0o755))
	s.WriteConf("30-full.conflist", `{"cniVersion": "1.0.0", "name": "full", "plugins": [{"type": "full"}]}`)
	s.config["healthInterval"] = "250ms"
	s.write()
	p := s.start()
	startPrometheus(t)
	web, fails := s.container("web", "storage"), s.container("fails", "full")
	expect.Value(s.add(ctx, web))(t)
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), web), s.cni.GetStatusNetworkList(ctx, s.list()))
	for n := range 2 {
		_, err := s.add(ctx, fails)
		expect.Fails(t, "an ADD whose plugin fails", err)
		counted := fmt.Sprintf(`embedcni_server_call_errors_total{verb="ADD", code="other"} == %d`, n+1)
		expect.Eventually(t, counted, func() bool { return len(result(t, counted)) > 0 })
	}
	_, text := get(t, "/metrics")
	metrics := exposed(text)
	for title, query := range queries(t) {
		expect.Eventually(t, title+": "+query, func() bool { return len(result(t, query)) > 0 })
		for _, name := range regexp.MustCompile(`\bembedcnid?_\w+`).FindAllString(query, -1) {
			base := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
			expect.That(t, metrics[name] != nil || metrics[base] != nil, "%s: /metrics has no %s", title, name)
		}
	}
	wantEvaluated(t)
	wantConventions(t, text)
	wantListed(t, metrics)
	expect.NoError(t, s.del(ctx, web), s.del(ctx, fails))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// wantEvaluated: Prometheus has evaluated each alert without an error.
func wantEvaluated(t *testing.T) {
	t.Helper()
	var got struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	expect.Eventually(t, "the rules are evaluated", func() bool {
		return fetch(t, "/api/v1/rules", &got) && len(got.Data.Groups) == 1 && got.Data.Groups[0].Rules[0].Health != "unknown"
	})
	for _, r := range got.Data.Groups[0].Rules {
		expect.Same(t, r.Name, r.Health+r.LastError, "ok")
	}
}

// wantConventions: promtool has no objection to names, units and help.
func wantConventions(t *testing.T, text string) {
	t.Helper()
	lint := exec.Command(tool(t, "promtool"), "check", "metrics")
	lint.Stdin = strings.NewReader(text)
	out, err := lint.CombinedOutput()
	expect.Same(t, "promtool check metrics", string(out), "")
	expect.NoError(t, err)
}

// wantListed: docs/operating.md has each metric of the library and the daemon, with its labels.
func wantListed(t *testing.T, metrics map[string][]string) {
	t.Helper()
	var listed, exposed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(embedcnid?_\\w+)` \\|([^|]*)\\|").FindAllStringSubmatch(operating(t), -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(m[2], -1)
		slices.Sort(labels)
		listed = append(listed, fmt.Sprint(m[1], labels))
	}
	for name, labels := range metrics {
		if strings.HasPrefix(name, "embedcni") {
			exposed = append(exposed, fmt.Sprint(name, labels))
		}
	}
	slices.Sort(listed)
	slices.Sort(exposed)
	expect.Same(t, "metrics that docs/operating.md lists", listed, exposed)
}
