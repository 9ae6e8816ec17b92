package conflist

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestACacheParsesEachListOnce(t *testing.T) {
	list := func(name string) []byte {
		return []byte(`{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "a"}]}`)
	}
	var c Cache
	first := expect.Value(c.Parse(list("a")))(t)
	other := expect.Value(c.Parse(list("b")))(t)
	expect.Same(t, "the same list", first == expect.Value(c.Parse(list("a")))(t), true)
	expect.Same(t, "names", [2]string{first.Name, other.Name}, [2]string{"a", "b"})
	for range 2 {
		got, err := c.Parse([]byte(`{`))
		expect.That(t, err != nil, "no error, and %v", got)
	}
	for i := range mostCached {
		expect.Value(c.Parse(list(fmt.Sprint("more", i))))(t)
	}
	expect.Same(t, "lists kept", len(c.known) <= mostCached, true)
	expect.Same(t, "after others", expect.Value(c.Parse(list("a")))(t).Name, "a")
	var none *Cache
	expect.Same(t, "without a cache", expect.Value(none.Parse(list("a")))(t).Name, "a")
}
