package record

import (
	"encoding/json"
	"maps"
	"sync"
)

// Facts are the notes of an attachment, see [Attachment]. Several goroutines may use them.
type Facts struct {
	mu    sync.Mutex
	noted map[string]json.RawMessage
}

// All returns a copy of the notes.
func (f *Facts) All() map[string]json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.noted)
}

// Reset replaces the notes by a copy of noted.
func (f *Facts) Reset(noted map[string]json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = maps.Clone(noted)
}

// Get returns the note under a key, or nil.
func (f *Facts) Get(key string) json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noted[key]
}

// Set adds a note, or replaces it.
func (f *Facts) Set(key string, note json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = merge(f.noted, map[string]json.RawMessage{key: note})
}

// merge adds the entries of from to into and returns into. If into is nil, it returns a copy
// of from.
func merge[V any](into, from map[string]V) map[string]V {
	if into == nil {
		return maps.Clone(from)
	}
	maps.Copy(into, from)
	return into
}
