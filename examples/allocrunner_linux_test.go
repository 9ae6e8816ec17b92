package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// wantWeb is what allocrunner says of the job of writeJobs: its address and its port.
const wantWeb = `job web at (\S+) with ports \[(\d+):80\]`

// serves has the job of writeJobs answer.
var serves = []string{serveVariable + "=:80"}

// writeJobs writes a file of one job, which answers HTTP.
func writeJobs(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "jobs.json")
	text := fmt.Sprintf(`[{"ID": "web", "Program": [%q], "Ports": [{"Label": "HTTP", "ContainerPort": 80}]}]`, self(t))
	expect.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestAllocrunner(t *testing.T) {
	leavesNothing(t)
	jobs := writeJobs(t)
	p := start(t, serves, "allocrunner", "-host", jobs)
	found := p.find(t, wantWeb)
	url := "http://10.61.0.1:" + found[1]
	expect.Same(t, "answer", get(t, url), found[0])
	p.end(t, unix.SIGKILL)

	// The next one goes on with the job, and repairs its network.
	expect.NoError(t, exec.Command("nft", "flush", "ruleset").Run())
	p = start(t, serves, "allocrunner", "-host", jobs)
	p.find(t, `job web goes on: its network is broken`)
	expect.Same(t, "answer", get(t, url), found[0])
	p.end(t, unix.SIGKILL)

	// The job ends while nobody looks. The next one starts it anew.
	before := childrenOf(t, os.Getpid()) // the orphans are this process's
	for _, pid := range before {
		expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	p = start(t, serves, "allocrunner", "-host", jobs)
	found = p.find(t, wantWeb)
	expect.Same(t, "answer", get(t, "http://10.61.0.1:"+found[1]), found[0])
	p.end(t, unix.SIGKILL)

	// The job is no longer in the file: its network goes. Its program ends here.
	job := childrenOf(t, os.Getpid())
	expect.NoError(t, os.WriteFile(jobs, []byte("[]"), 0o600))
	p = start(t, nil, "allocrunner", "-host", jobs)
	expect.NoError(t, p.Wait())
	for _, pid := range job {
		expect.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
}

// TestAllocrunnerLeavesNoTrace: without -host it leaves no bridge, chain, namespace or file
// either, after one that was killed too. An interrupt ends the job.
func TestAllocrunnerLeavesNoTrace(t *testing.T) {
	leavesNoTrace(t)
	jobs := writeJobs(t)
	p := start(t, serves, "allocrunner", jobs)
	found := p.find(t, wantWeb)
	url := "http://10.61.0.1:" + found[1]
	expect.Same(t, "answer", getFrom(t, "/run/netns/allocrunner", url), found[0])
	p.end(t, unix.SIGKILL)

	p = start(t, serves, "allocrunner", jobs)
	p.find(t, `job web goes on: its network is healthy`)
	expect.Same(t, "answer", getFrom(t, "/run/netns/allocrunner", url), found[0])
	expect.Same(t, "exit code", p.end(t, unix.SIGINT), 0)
}

// TestAllocrunnerRefusesMistakes, and leaves nothing.
func TestAllocrunnerRefusesMistakes(t *testing.T) {
	leavesNoTrace(t)
	p := start(t, nil, "allocrunner", filepath.Join(t.TempDir(), "none.json"))
	p.find(t, "no such file")
	expect.Same(t, "exit code", p.exitCode(t), 1)
}
