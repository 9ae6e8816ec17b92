package main

import (
	"strings"
	"testing"
)

func TestExampleJobsAreValid(t *testing.T) {
	all, err := parseJobs(exampleJobs)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, a := range all {
		ids = append(ids, a.ID)
	}
	if got, want := strings.Join(ids, " "), "web-0 web-1 api-0 shop-0"; got != want {
		t.Errorf("allocations %s, want %s", got, want)
	}
}

func TestJobsThatAreWrongAreRefused(t *testing.T) {
	const rest = `"networks": ["services"], "args": ["httpd"]`
	for text, want := range map[string]string{
		`{"jobs": [{"name": "a", "count": 1, "netwroks": [], ` + rest + `}]}`:                                  `unknown field "netwroks"`,
		`{"jobs": [{"name": "../a", "count": 1, ` + rest + `}]}`:                                               "the name must match",
		`{"jobs": [{"name": "a", "count": -1, ` + rest + `}]}`:                                                 "count -1",
		`{"jobs": [{"name": "a", "count": 1, "networks": ["services"]}]}`:                                      "it has no args",
		`{"jobs": [{"name": "a", "count": 1, "args": ["httpd"]}]}`:                                             "it has no networks",
		`{"jobs": [{"name": "a", ` + rest + `}, {"name": "a", ` + rest + `}]}`:                                 `two jobs are named "a"`,
		`{"jobs": [{"name": "a", "count": 1, "ports": [{"map": ":80"}], ` + rest + `}]}`:                       `port ":80" is not one port with a label`,
		`{"jobs": [{"name": "a", "count": 1, "ports": [{"label": "x", "map": "80-81:80-81"}], ` + rest + `}]}`: `port "80-81:80-81" is not one port with a label`,
		`{"jobs": [{"name": "a", "count": 2, "ports": [{"label": "x", "map": "80:80"}], ` + rest + `}]}`:       "2 allocations want host port 80",
		`{"jobs": [`: "unexpected EOF",
	} {
		if _, err := parseJobs([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
