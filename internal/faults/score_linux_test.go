package faults_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// board collects the figures of concurrent tests.
type board struct {
	seed uint64

	mu      sync.Mutex
	lines   []string
	removes int // Removes that returned nil
	lies    int // those of them with leftovers

	goCNI sync.Mutex // go-cni has one state directory for the whole machine
}

// figure adds a line to the table, and fails the test if the figure misses its
// target.
func (b *board) figure(t *testing.T, name, what, figure, target string, met bool) {
	t.Helper()
	line := fmt.Sprintf("%-4s %-42s %-44s target %s", name, what, figure, target)
	t.Log(line)
	if !met {
		line += "   MISSED"
		t.Errorf("%s: %s, target %s", name, figure, target)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, line)
}

// removed counts a Remove that returned nil, and its leftovers (M4).
func (b *board) removed(left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removes++
	if left > 0 {
		b.lies++
	}
}

func (b *board) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(b.seed, stream)) }

// count is a set of numbers for concurrent tests.
type count struct {
	mu      sync.Mutex
	n       map[string]int
	longest map[string]time.Duration
}

// took records a duration.
func (c *count) took(what string, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.longest == nil {
		c.longest = make(map[string]time.Duration)
	}
	c.longest[what] = max(d, c.longest[what])
}

func (c *count) add(what string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[what] += n
}

func (c *count) get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

// onHosts runs n cases, some on each host. The hosts run beside each other.
func onHosts(t *testing.T, n, perHost int, run func(t *testing.T, first, end int)) {
	t.Run("hosts", func(t *testing.T) {
		for first := 0; first < n; first += perHost {
			t.Run(fmt.Sprint(first), func(t *testing.T) {
				t.Parallel()
				run(t, first, min(first+perHost, n))
			})
		}
	})
}

func TestScorecard(t *testing.T) {
	b := &board{seed: *seedFlag}
	if b.seed == 0 {
		b.seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", b.seed)
	// Some of them alone must find IPv6 as all of them do.
	(&testhost.RealHost{Host: &testhost.Host{T: t}}).ProbeIPv6()
	t.Run("M13", b.cost)
	t.Run("M7", b.deadline)
	t.Run("M8", b.unrelated)
	t.Run("M9", b.crowd)
	t.Run("M12", b.powerCut)
	t.Run("M6", b.namespaces)
	t.Run("M3", b.matrix)
	t.Run("M2", b.killPlugins)
	t.Run("M5", b.partialFailures)
	t.Run("M1", b.killRuntimes)
	t.Run("M1 in process", b.killRuntimesInProcess)
	t.Run("M1 makes namespaces", b.killRuntimesThatMakeNetNS)
	t.Run("M16", b.living)
	t.Run("M16 Repair", b.killRepairs)
	t.Run("M16 Guard", b.killGuards)
	t.Run("M21", b.patterns)
	t.Run("M20", b.flushedRules)
	t.Run("M22", b.changedRules)
	b.figure(t, "M4", "Remove is nil with something left", fmt.Sprintf("%d of %d", b.lies, b.removes), "0", b.lies == 0)
	b.print(t)
}

func (b *board) print(t *testing.T) {
	slices.SortStableFunc(b.lines, func(a, c string) int { return number(a) - number(c) })
	table := fmt.Sprintf("seed %d\n%s\n", b.seed, strings.Join(b.lines, "\n"))
	t.Log("\n" + table)
	if *tableFile != "" {
		expect.NoError(t, os.WriteFile(*tableFile, []byte(table), 0o644))
	}
}

// number returns 7 for "M7 …".
func number(line string) (n int) {
	if _, err := fmt.Sscanf(line, "M%d", &n); err != nil {
		panic(err) // every line has this form
	}
	return n
}
