package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// chunksPerShard is how many processes each shard starts, one after the other. Several
// keep the shards equally busy without a table of how long each test takes; a process
// costs a few milliseconds.
const chunksPerShard = 4

// runShards runs the tests of this program in n processes at a time, each in a sandbox of
// its own, and returns the exit code of the first that failed. Tests that wait for the
// kernel or for a deadline then wait side by side.
func runShards(n int, env []string) (int, error) {
	names, err := testNames()
	if err != nil {
		return 1, err
	}
	chunks := deal(names, n*chunksPerShard)
	var (
		group  sync.WaitGroup
		mu     sync.Mutex
		code   int
		failed error
		queue  = make(chan []string, len(chunks))
	)
	for _, chunk := range chunks {
		queue <- chunk
	}
	close(queue)
	for range n {
		group.Go(func() {
			// A child is killed when the thread that started it ends.
			runtime.LockOSThread()
			for chunk := range queue {
				out, got, err := runChunk(chunk, env)
				mu.Lock()
				if _, werr := os.Stdout.Write(out); err == nil {
					err = werr
				}
				if code == 0 {
					code, failed = got, err
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return code, failed
}

// deal distributes names over at most n chunks in turn, so that the tests of one file,
// which are listed together and often take equally long, end up in different chunks.
func deal(names []string, n int) [][]string {
	chunks := make([][]string, min(n, len(names)))
	for i, name := range names {
		chunks[i%len(chunks)] = append(chunks[i%len(chunks)], name)
	}
	return chunks
}

// testNames asks this program for the names of its tests, examples and fuzz tests.
func testNames() ([]string, error) {
	out, err := exec.Command("/proc/self/exe", "-test.list", ".").Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests: %w", err)
	}
	var names []string
	for _, name := range strings.Fields(string(out)) {
		if !strings.HasPrefix(name, "Benchmark") {
			names = append(names, name)
		}
	}
	return names, nil
}

// runChunk runs some tests in a process of their own and returns what it printed.
func runChunk(names, env []string) (out []byte, code int, err error) {
	var printed bytes.Buffer
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
		return strings.Contains(arg, "test.testlogfile") // one file for one process
	})
	args = append(args, "-test.run=^("+strings.Join(names, "|")+")$")
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(slices.Clone(env), shard+"=1") // others append to env at the same time
	cmd.Stdout, cmd.Stderr = &printed, &printed
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return nil, 1, fmt.Errorf("start a shard: %w", err)
	}
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return printed.Bytes(), exitCode(status), nil
}
