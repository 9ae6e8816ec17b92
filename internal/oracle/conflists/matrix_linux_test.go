package conflists

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// cell is what was compared of a configuration in one column.
type cell struct {
	calls   int
	differs map[string]int
}

func (c *cell) differ(name string) {
	if c.differs == nil {
		c.differs = map[string]int{}
	}
	c.differs[name]++
}

// matrix has the cells by file and column.
type matrix struct {
	mu      sync.Mutex
	cells   map[string]map[string]*cell
	differs map[string]int
}

func (m *matrix) add(file, column string, c *cell) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cells[file] == nil {
		m.cells[file] = map[string]*cell{}
	}
	m.cells[file][column] = c
	if m.differs == nil {
		m.differs = map[string]int{}
	}
	for name, n := range c.differs {
		m.differs[name] += n
	}
}

// String lists for each configuration how many calls were compared, in each column, and
// which of the listed differences they had beyond the first three.
func (m *matrix) String() string {
	var b strings.Builder
	all := columns(source{}, "")
	fmt.Fprintf(&b, "%-30s", "calls compared with libcni's")
	for _, column := range all {
		fmt.Fprintf(&b, " %10s", strings.TrimPrefix(column, "1.1.0, answered "))
	}
	total := 0
	for _, file := range slices.Sorted(maps.Keys(m.cells)) {
		fmt.Fprintf(&b, "\n%-30s", file)
		also := map[string]bool{}
		for _, column := range all {
			c := m.cells[file][column]
			if c == nil {
				fmt.Fprintf(&b, " %10s", "-")
				continue
			}
			fmt.Fprintf(&b, " %10d", c.calls)
			total += c.calls
			for name := range c.differs {
				also[name] = true
			}
		}
		for _, d := range differences[:3] {
			delete(also, d.name)
		}
		if len(also) > 0 {
			b.WriteString("  " + strings.Join(slices.Sorted(maps.Keys(also)), ", "))
		}
	}
	fmt.Fprintf(&b, "\n%d calls. Listed differences, in how many of them:", total)
	for _, d := range differences {
		fmt.Fprintf(&b, "\n%6d  %s: %s", m.differs[d.name], d.name, d.why)
	}
	return b.String()
}
