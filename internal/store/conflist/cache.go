package conflist

import (
	"sync"

	"github.com/containernetworking/cni/libcni"
)

// mostCached limits the memory of a Cache: each container can have its own list.
const mostCached = 256

// Cache parses each list once, however many attachments have it on record. A list must
// not be changed. A nil Cache parses each time. It is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	known map[string]*libcni.NetworkConfigList
}

// Parse is [Parse].
func (c *Cache) Parse(data []byte) (*libcni.NetworkConfigList, error) {
	if c == nil {
		return Parse(data)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if list, ok := c.known[string(data)]; ok {
		return list, nil
	}
	list, err := Parse(data)
	if err != nil {
		return nil, err
	}
	if c.known == nil || len(c.known) == mostCached {
		c.known = make(map[string]*libcni.NetworkConfigList)
	}
	c.known[string(data)] = list
	return list, nil
}
