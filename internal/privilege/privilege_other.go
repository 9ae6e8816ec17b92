//go:build !linux

package privilege

// Missing returns nil: other systems have no capabilities.
func Missing() ([]string, error) { return nil, nil }
