package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"

	"github.com/embedcni/cni"
)

// job is a program that runs in some containers, its allocations.
type job struct {
	Name     string            `json:"name"`
	Count    int               `json:"count"`
	Networks []string          `json:"networks"`         // the first has the primary address
	Labels   map[string]string `json:"labels,omitempty"` // for plugins, see cni.WithLabels
	Ports    []port            `json:"ports,omitempty"`
	Args     []string          `json:"args"`
}

// port is a port of a container that the host forwards.
type port struct {
	Label string `json:"label"`
	// Map is as cni.ParsePorts reads it: "8080:80", or ":80" for a port of the host that
	// the library chooses.
	Map string `json:"map"`
}

// ports returns the job's ports for the library.
func (j job) ports() (all []cni.Port, err error) {
	for _, p := range j.Ports {
		mapped, err := cni.ParsePorts(p.Map)
		if err != nil {
			return nil, err
		}
		if p.Label == "" || len(mapped) != 1 {
			return nil, fmt.Errorf("port %q is not one port with a label", p.Map)
		}
		mapped[0].Label = p.Label
		all = append(all, mapped...)
	}
	return all, nil
}

// allocation is one container of a job.
type allocation struct {
	ID  string
	Job job
}

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

// loadJobs reads a file of jobs, and returns their allocations.
func loadJobs(path string) (all []allocation, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if all, err = parseJobs(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return all, nil
}

// parseJobs returns the allocations of all jobs: "web-0", "web-1", "api-0".
func parseJobs(data []byte) (all []allocation, err error) {
	var file struct {
		Jobs []job `json:"jobs"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, j := range file.Jobs {
		if err := j.check(); err != nil {
			return nil, fmt.Errorf("job %q: %w", j.Name, err)
		}
		if names[j.Name] {
			return nil, fmt.Errorf("two jobs are named %q", j.Name)
		}
		names[j.Name] = true
		for i := range j.Count {
			all = append(all, allocation{ID: fmt.Sprintf("%s-%d", j.Name, i), Job: j})
		}
	}
	return all, nil
}

// check validates what the library does not know. It validates networks and ports.
func (j job) check() error {
	switch {
	case !validName.MatchString(j.Name):
		return fmt.Errorf("the name must match %s", validName)
	case j.Count < 0:
		return fmt.Errorf("count %d", j.Count)
	case len(j.Networks) == 0:
		return fmt.Errorf("it has no networks")
	case len(j.Args) == 0:
		return fmt.Errorf("it has no args")
	}
	ports, err := j.ports()
	for _, p := range ports {
		if p.HostPort != 0 && j.Count > 1 {
			return fmt.Errorf("%d allocations want host port %d", j.Count, p.HostPort)
		}
	}
	return err
}
