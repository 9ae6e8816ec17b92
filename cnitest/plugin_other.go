//go:build !unix

package cnitest

func actAsPlugin() {}

// Plugin needs Unix.
func (h *TestHost) Plugin(typ string, _ Script) {
	h.t.Fatalf("install plugin %q: needs Unix", typ)
}

// Calls returns nothing.
func (h *TestHost) Calls() []PluginCall { return nil }
