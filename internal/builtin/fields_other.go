//go:build !linux

package builtin

import (
	"encoding/json"

	"github.com/embedcni/cni/internal/misspelt"
)

// Misspelt returns nil: the plugins need Linux.
func Misspelt(json.RawMessage, func(string) bool) []misspelt.Field { return nil }
