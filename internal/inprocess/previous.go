package inprocess

import (
	"bytes"
	"encoding/json"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/plugin"
)

// Previous remembers the last previous result that it decoded: all plugins get the
// same for DEL, and for ADD if the one before has added nothing. Each gets a copy,
// because it may change its own. A nil Previous remembers nothing. It is safe for
// concurrent use.
type Previous struct {
	mu      sync.Mutex
	version string // of the configuration
	data    []byte
	result  *types100.Result
}

// decode is [DecodeResult].
func (p *Previous) decode(configVersion string, data json.RawMessage) (*types100.Result, error) {
	if p == nil {
		return DecodeResult(configVersion, data)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.result == nil || p.version != configVersion || !bytes.Equal(p.data, data) {
		result, err := DecodeResult(configVersion, data)
		if err != nil || result == nil {
			return nil, err
		}
		p.version, p.data, p.result = configVersion, bytes.Clone(data), result
	}
	return (&plugin.Request{PrevResult: p.result}).Chained()
}
